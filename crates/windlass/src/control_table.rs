//! Formats controls as a table: the state, the mechanism and the remedy of each control. Every command
//! that prints controls uses it.

use windlass_protocol::confinement::{ControlReport, ControlState};

use crate::terminal::{Terminal, Tone};

/// One line per control, and a line with the remedy below a control that is not enforced.
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

/// The state as text.
pub fn state(report: &ControlReport) -> &'static str {
    match (report.state, report.tested) {
        (ControlState::Enforced, true) => "tested",
        (ControlState::Enforced, false) => "enforced",
        (ControlState::NotEnforced, _) => "not enforced",
        (ControlState::NotAsked, _) => "not requested by this policy",
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::confinement::Control;

    use super::*;

    #[test]
    fn a_control_that_is_not_enforced_shows_its_reason_and_remedy() {
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
