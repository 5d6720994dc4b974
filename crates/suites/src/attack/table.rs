//! The table of a run: what was attempted, and by what it was refused, for each user, level and network
//! setting.

use std::collections::BTreeSet;
use std::fmt::Write;

use windlass_protocol::confinement::Isolation;
use windlass_testkit::attacks::{Attack, NetworkSetting};

use super::row::{Kind, Row, Who};

/// Letters of the first column's words, and of each verdict's.
const NAME_WIDTH: usize = 58;
const CELL_WIDTH: usize = 30;

/// The levels as columns: what is promised, then what the attacks do without it.
const LEVELS: [Isolation; 3] = [Isolation::Full, Isolation::Landlock, Isolation::None];

/// A column: a user, a level and a network setting, in the order in which they are shown.
type Column = (Who, usize, usize);

pub fn table(attacks: &[Attack], rows: &[Row]) -> String {
    let columns: BTreeSet<Column> = rows.iter().filter_map(column).collect();
    // A level that starts no session with a network setting has nothing to show but that.
    let (refused, played): (Vec<Column>, Vec<Column>) =
        columns.into_iter().partition(|at| of(rows, *at).all(|row| row.kind == Kind::NotClaimed));
    let mut text = format!("line {}", cut("attempted", NAME_WIDTH));
    for at in &played {
        let _ = write!(text, " {}", cut(&title(*at), CELL_WIDTH));
    }
    text.push('\n');
    for attack in attacks {
        let _ = write!(text, "{:>4} {}", attack.line, cut(attack.name, NAME_WIDTH));
        for at in &played {
            let row = of(rows, *at).find(|row| row.program == attack.program);
            let _ = write!(text, " {}", cut(&row.map_or_else(|| "-".to_owned(), cell), CELL_WIDTH));
        }
        text.push('\n');
    }
    text.push('\n');
    for at in played {
        text.push_str(&counts(rows, at));
    }
    for at in refused {
        let why = of(rows, at).next().map_or("", |row| row.words.as_str());
        let _ = writeln!(text, "{}: nothing is played: {why}", title(at));
    }
    text
}

fn column(row: &Row) -> Option<Column> {
    let level = LEVELS.iter().position(|level| *level == row.level)?;
    let network = NetworkSetting::ALL.iter().position(|one| one.as_str() == row.network)?;
    Some((row.who, level, network))
}

fn of(rows: &[Row], at: Column) -> impl Iterator<Item = &Row> {
    rows.iter().filter(move |row| column(row) == Some(at))
}

fn title((who, level, network): Column) -> String {
    let (level, network) = (LEVELS[level], NetworkSetting::ALL[network]);
    match level {
        Isolation::None => format!("{} {level}", who.as_str()),
        _ => format!("{} {level}, network {network}", who.as_str()),
    }
}

fn cell(row: &Row) -> String {
    match (row.kind, row.claimed || row.level == Isolation::None) {
        (Kind::Refused, _) => row.words.clone(),
        (Kind::Through, true) => format!("THROUGH {}", row.words),
        (Kind::NoVerdict, true) => format!("NO VERDICT {}", row.words),
        (Kind::Through | Kind::NoVerdict, false) => "not claimed".to_owned(),
        (Kind::NotClaimed, _) => format!("not claimed: {}", row.words),
    }
}

fn counts(rows: &[Row], at: Column) -> String {
    let rows: Vec<&Row> = of(rows, at).collect();
    let count = |kind: Kind| rows.iter().filter(|row| row.kind == kind).count();
    let claimed = rows.iter().filter(|row| row.claimed).count();
    let failed = rows.iter().filter(|row| row.fails()).count();
    let what = match LEVELS[at.1] {
        Isolation::None => "nothing is claimed".to_owned(),
        _ => format!("{claimed} claimed, {failed} of them not refused"),
    };
    format!(
        "{}: {} attempted, {} refused, {} through, {} without a verdict; {what}\n",
        title(at),
        rows.len() - count(Kind::NotClaimed),
        count(Kind::Refused),
        count(Kind::Through),
        count(Kind::NoVerdict),
    )
}

/// `text` in exactly `width` letters.
fn cut(text: &str, width: usize) -> String {
    let short: String = text.chars().take(width).collect();
    format!("{short:<width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(level: Isolation, claimed: bool, kind: Kind) -> Row {
        let (program, name, words) = ("a".to_owned(), "try a".to_owned(), "EACCES".to_owned());
        let network = "none".to_owned();
        Row { line: 50, program, name, who: Who::Root, level, network, claimed, kind, words }
    }

    #[test]
    fn an_attack_fails_the_run_only_where_a_level_claims_to_refuse_it() {
        assert!(row(Isolation::Full, true, Kind::Through).fails());
        assert!(row(Isolation::Full, true, Kind::NoVerdict).fails());
        assert!(!row(Isolation::Full, true, Kind::Refused).fails());
        assert!(!row(Isolation::Landlock, false, Kind::Through).fails());
    }

    #[test]
    fn a_level_that_starts_no_session_gets_a_line_and_no_column() {
        let attacks: Vec<Attack> = Vec::new();
        let mut refused = row(Isolation::Landlock, false, Kind::NotClaimed);
        refused.network = "hosts".to_owned();
        let text = table(&attacks, &[row(Isolation::Full, true, Kind::Refused), refused]);
        assert!(text.lines().next().is_some_and(|line| !line.contains("landlock")), "{text}");
        assert!(text.contains("root landlock, network hosts: nothing is played: EACCES"), "{text}");
        assert!(text.contains("root full, network none: 1 attempted, 1 refused"), "{text}");
    }

    #[test]
    fn a_cell_says_by_what_an_attack_was_refused() {
        assert_eq!(cell(&row(Isolation::Full, true, Kind::Refused)), "EACCES");
        assert_eq!(cell(&row(Isolation::Full, true, Kind::Through)), "THROUGH EACCES");
        assert_eq!(cell(&row(Isolation::Landlock, false, Kind::Through)), "not claimed");
        assert_eq!(cell(&row(Isolation::None, false, Kind::Through)), "THROUGH EACCES");
    }
}
