//! The table of a run: what was attempted, and by what it was refused, for each level and user.

use std::collections::BTreeSet;
use std::fmt::Write;

use windlass_protocol::confinement::Isolation;
use windlass_testkit::attacks::Attack;

use super::row::{Kind, Row, Who};

/// Letters of the first column's words, and of each verdict's.
const NAME_WIDTH: usize = 58;
const CELL_WIDTH: usize = 30;

/// The levels as columns: what is promised, then what the attacks do without it.
const LEVELS: [Isolation; 3] = [Isolation::Full, Isolation::Landlock, Isolation::None];

pub fn table(attacks: &[Attack], rows: &[Row]) -> String {
    let columns: BTreeSet<(Who, usize)> = rows
        .iter()
        .filter_map(|row| Some((row.who, LEVELS.iter().position(|level| *level == row.level)?)))
        .collect();
    let mut text = format!("line {}", cut("attempted", NAME_WIDTH));
    for (who, level) in &columns {
        let _ =
            write!(text, " {}", cut(&format!("{} {}", who.as_str(), LEVELS[*level]), CELL_WIDTH));
    }
    text.push('\n');
    for attack in attacks {
        let _ = write!(text, "{:>4} {}", attack.line, cut(attack.name, NAME_WIDTH));
        for (who, level) in &columns {
            let row = rows.iter().find(|row| {
                row.program == attack.program && row.who == *who && row.level == LEVELS[*level]
            });
            let _ = write!(text, " {}", cut(&row.map_or_else(|| "-".to_owned(), cell), CELL_WIDTH));
        }
        text.push('\n');
    }
    text.push('\n');
    for (who, level) in &columns {
        text.push_str(&counts(rows, *who, LEVELS[*level]));
    }
    text
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

fn counts(rows: &[Row], who: Who, level: Isolation) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|r| r.who == who && r.level == level).collect();
    let count = |kind: Kind| rows.iter().filter(|row| row.kind == kind).count();
    let claimed = rows.iter().filter(|row| row.claimed).count();
    let failed = rows.iter().filter(|row| row.fails()).count();
    let what = match level {
        Isolation::None => "nothing is claimed".to_owned(),
        _ => format!("{claimed} claimed, {failed} of them not refused"),
    };
    format!(
        "{} at {level}: {} attempted, {} refused, {} through, {} without a verdict; {what}\n",
        who.as_str(),
        rows.len(),
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
        Row { line: 50, program, name, who: Who::Root, level, claimed, kind, words }
    }

    #[test]
    fn an_attack_fails_the_run_only_where_a_level_claims_to_refuse_it() {
        assert!(row(Isolation::Full, true, Kind::Through).fails());
        assert!(row(Isolation::Full, true, Kind::NoVerdict).fails());
        assert!(!row(Isolation::Full, true, Kind::Refused).fails());
        assert!(!row(Isolation::Landlock, false, Kind::Through).fails());
    }

    #[test]
    fn a_cell_says_by_what_an_attack_was_refused() {
        assert_eq!(cell(&row(Isolation::Full, true, Kind::Refused)), "EACCES");
        assert_eq!(cell(&row(Isolation::Full, true, Kind::Through)), "THROUGH EACCES");
        assert_eq!(cell(&row(Isolation::Landlock, false, Kind::Through)), "not claimed");
        assert_eq!(cell(&row(Isolation::None, false, Kind::Through)), "THROUGH EACCES");
    }
}
