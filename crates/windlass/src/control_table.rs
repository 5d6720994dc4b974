//! Controls as a table: what each amounts to, by what, and what would help. The same wherever they
//! are shown.

use windlass_protocol::confinement::{ControlReport, ControlState};

use crate::terminal::{Terminal, Tone};

/// A line for each control; under one that is not enforced, what would help.
pub fn lines(terminal: &Terminal, controls: &[ControlReport]) -> Vec<String> {
    controls.iter().flat_map(|report| of_one(terminal, report)).collect()
}

fn of_one(terminal: &Terminal, report: &ControlReport) -> Vec<String> {
    let (mark, tone) = match report.state {
        ControlState::Enforced => ("✓", Tone::Good),
        ControlState::NotEnforced => ("✗", Tone::Error),
        ControlState::NotAsked => ("-", Tone::Faint),
    };
    let state =
        terminal.tone(tone, &format!("{mark} {:14} {:12}", report.control.as_str(), state(report)));
    let mut lines = vec![format!("  {state}  {}", report.mechanism).trim_end().to_owned()];
    let help = report.remedy.as_ref().filter(|_| report.state == ControlState::NotEnforced);
    lines.extend(help.map(|remedy| format!("      help: {remedy}")));
    lines
}

/// The state in words.
pub fn state(report: &ControlReport) -> &'static str {
    match (report.state, report.tested) {
        (ControlState::Enforced, true) => "tested",
        (ControlState::Enforced, false) => "enforced",
        (ControlState::NotEnforced, _) => "not enforced",
        (ControlState::NotAsked, _) => "not asked",
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::confinement::Control;

    use super::*;

    #[test]
    fn a_control_that_is_not_enforced_says_why_and_what_would_help() {
        let report = ControlReport {
            control: Control::Protected,
            state: ControlState::NotEnforced,
            mechanism: "no names can be cut out".to_owned(),
            tested: false,
            remedy: Some("use the level full".to_owned()),
        };
        let lines = lines(&Terminal::plain(), &[report]);
        assert_eq!(
            lines,
            [
                "  ✗ protected      not enforced  no names can be cut out",
                "      help: use the level full"
            ]
        );
    }
}
