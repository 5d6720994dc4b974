//! The table of attacks for `docs/security.md`: the contract line of each attack, what it tries, and the
//! levels that claim to refuse it.

use std::fmt::Write;

use windlass_client::protocol::confinement::Isolation;

use super::network::NetworkSetting;
use super::program::{Attack, Needs, all};

/// The table in the form that the document contains.
pub fn table() -> String {
    let mut text = String::from(
        "| no. | line | finding | attack | tries to | claimed at | needs |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for (index, attack) in all().iter().enumerate() {
        let finding = attack.finding.map_or_else(String::new, |number| number.to_string());
        let _ = writeln!(
            text,
            "| {} | {} | {finding} | `{}` | {} | {} | {} |",
            index + 1,
            attack.line,
            attack.program,
            attack.name,
            claimed(attack),
            needs(attack.needs),
        );
    }
    text
}

fn claimed(attack: &Attack) -> String {
    let levels: Vec<&str> = attack.levels.iter().map(|level| level.as_str()).collect();
    let mut text = if levels.is_empty() { "nowhere".to_owned() } else { levels.join(", ") };
    if attack.networks.len() < NetworkSetting::ALL.len() {
        let networks: Vec<&str> = attack.networks.iter().map(|one| one.as_str()).collect();
        let _ = write!(text, "; network {}", networks.join(", "));
    }
    if let Some(control) = attack.control {
        let _ = write!(text, "; where `{control}` is enforced");
    }
    debug_assert!(
        !attack.levels.contains(&Isolation::None),
        "without isolation nothing is claimed"
    );
    text
}

fn needs(needs: Needs) -> &'static str {
    match needs {
        Needs::Anyone => "",
        Needs::Root => "root",
        Needs::User => "a user",
    }
}
