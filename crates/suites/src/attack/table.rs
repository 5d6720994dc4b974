//! The table of a run: each attack, and what refused it, for each user, level and network setting.

use std::collections::BTreeSet;
use std::fmt::Write;

use windlass_protocol::confinement::Isolation;
use windlass_testkit::attacks::{Attack, NetworkSetting};

use super::row::{AttackOutcome, AttackRow, Privilege};

/// Characters of an attack's name, and of each verdict.
const NAME_WIDTH: usize = 58;
const CELL_WIDTH: usize = 30;

/// The order of the levels: first those that claim to refuse attacks, then `none`.
const LEVELS: [Isolation; 3] = [Isolation::Full, Isolation::Landlock, Isolation::None];

/// A column: a user, a level and a network setting, in the order in which they are shown.
type Column = (Privilege, usize, usize);

pub fn table(attacks: &[Attack], rows: &[AttackRow]) -> String {
    let columns: BTreeSet<Column> = rows.iter().filter_map(column).collect();
    // If a level starts no session with a network setting, the reason gets one line below the table and no
    // column.
    let (refused, played): (Vec<Column>, Vec<Column>) = columns
        .into_iter()
        .partition(|at| of(rows, *at).all(|row| row.kind == AttackOutcome::NotClaimed));
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
        let _ = writeln!(text, "{}: no attack ran: {why}", title(at));
    }
    text
}

fn column(row: &AttackRow) -> Option<Column> {
    let level = LEVELS.iter().position(|level| *level == row.level)?;
    let network = NetworkSetting::ALL.iter().position(|one| one.as_str() == row.network)?;
    Some((row.who, level, network))
}

fn of(rows: &[AttackRow], at: Column) -> impl Iterator<Item = &AttackRow> {
    rows.iter().filter(move |row| column(row) == Some(at))
}

fn title((who, level, network): Column) -> String {
    let (level, network) = (LEVELS[level], NetworkSetting::ALL[network]);
    match level {
        Isolation::None => format!("{} {level}", who.as_str()),
        _ => format!("{} {level}, network {network}", who.as_str()),
    }
}

fn cell(row: &AttackRow) -> String {
    match (row.kind, row.claimed || row.level == Isolation::None) {
        (AttackOutcome::Refused, _) => row.words.clone(),
        (AttackOutcome::Through, true) => format!("THROUGH {}", row.words),
        (AttackOutcome::NoVerdict, true) => format!("NO VERDICT {}", row.words),
        (AttackOutcome::Through | AttackOutcome::NoVerdict, false) => "not claimed".to_owned(),
        (AttackOutcome::NotClaimed, _) => format!("not claimed: {}", row.words),
    }
}

fn counts(rows: &[AttackRow], at: Column) -> String {
    let rows: Vec<&AttackRow> = of(rows, at).collect();
    let count = |kind: AttackOutcome| rows.iter().filter(|row| row.kind == kind).count();
    let claimed = rows.iter().filter(|row| row.claimed).count();
    let failed = rows.iter().filter(|row| row.fails()).count();
    let what = match LEVELS[at.1] {
        Isolation::None => "nothing is claimed".to_owned(),
        _ => format!("{claimed} claimed, {failed} of them not refused"),
    };
    format!(
        "{}: {} attempted, {} refused, {} through, {} without a verdict; {what}\n",
        title(at),
        rows.len() - count(AttackOutcome::NotClaimed),
        count(AttackOutcome::Refused),
        count(AttackOutcome::Through),
        count(AttackOutcome::NoVerdict),
    )
}

/// `text`, cut or padded to exactly `width` characters.
fn cut(text: &str, width: usize) -> String {
    let short: String = text.chars().take(width).collect();
    format!("{short:<width$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(level: Isolation, claimed: bool, kind: AttackOutcome) -> AttackRow {
        let (program, name, words) = ("a".to_owned(), "try a".to_owned(), "EACCES".to_owned());
        let network = "none".to_owned();
        AttackRow {
            line: 50,
            program,
            name,
            who: Privilege::Root,
            level,
            network,
            claimed,
            kind,
            words,
        }
    }

    #[test]
    fn an_attack_fails_the_run_only_where_a_level_claims_to_refuse_it() {
        assert!(row(Isolation::Full, true, AttackOutcome::Through).fails());
        assert!(row(Isolation::Full, true, AttackOutcome::NoVerdict).fails());
        assert!(!row(Isolation::Full, true, AttackOutcome::Refused).fails());
        assert!(!row(Isolation::Landlock, false, AttackOutcome::Through).fails());
    }

    #[test]
    fn a_level_that_starts_no_session_gets_a_line_and_no_column() {
        let attacks: Vec<Attack> = Vec::new();
        let mut refused = row(Isolation::Landlock, false, AttackOutcome::NotClaimed);
        refused.network = "hosts".to_owned();
        let text = table(&attacks, &[row(Isolation::Full, true, AttackOutcome::Refused), refused]);
        assert!(text.lines().next().is_some_and(|line| !line.contains("landlock")), "{text}");
        assert!(text.contains("root landlock, network hosts: no attack ran: EACCES"), "{text}");
        assert!(text.contains("root full, network none: 1 attempted, 1 refused"), "{text}");
    }

    #[test]
    fn a_cell_says_by_what_an_attack_was_refused() {
        assert_eq!(cell(&row(Isolation::Full, true, AttackOutcome::Refused)), "EACCES");
        assert_eq!(cell(&row(Isolation::Full, true, AttackOutcome::Through)), "THROUGH EACCES");
        assert_eq!(cell(&row(Isolation::Landlock, false, AttackOutcome::Through)), "not claimed");
        assert_eq!(cell(&row(Isolation::None, false, AttackOutcome::Through)), "THROUGH EACCES");
    }
}
