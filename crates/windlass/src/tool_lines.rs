//! Lines about the calls of host tools, for `--verbose`: one when a call begins, one when it ends. The journal has no
//! arguments and no answers, so the lines have names, sizes, durations and errors. The lines have the form of those
//! that the SDKs print.

use std::collections::HashMap;

use windlass_protocol::event::Event;
use windlass_protocol::{CallNo, EventKind, SessionId, TurnNo};

use crate::agent_view;
use crate::counted::counted;
use crate::terminal::Tone;

/// Longest shown name of a tool, in characters.
const NAME_CHARS_MAX: usize = 200;

/// How the names of built-in tools begin, with which libraries in the session find the others.
const BUILT_IN: &str = "windlass.";

/// Number of calls whose names are remembered until they end.
const OPEN_CALLS_MAX: usize = 1024;

/// The names of calls that have not ended.
#[derive(Debug, Default)]
pub struct ToolLines {
    open: HashMap<(TurnNo, CallNo), String>,
}

impl ToolLines {
    /// The line about an event, if it begins or ends a call.
    pub fn line(&mut self, session: &SessionId, event: &Event) -> Option<(Tone, String)> {
        let turn = event.turn?;
        let about = |call: CallNo| format!("windlass: [{session} {turn}.{call}]");
        match &event.kind {
            EventKind::ToolCall { call, name, offset, bytes, more: false, .. }
                if !name.starts_with(BUILT_IN) =>
            {
                let name = one_line(name);
                let size = sized(offset + bytes, "of arguments");
                let line = format!("{} -> {name}({size})", about(*call));
                if self.open.len() >= OPEN_CALLS_MAX {
                    self.open.clear();
                }
                self.open.insert((turn, *call), name);
                Some((Tone::Faint, line))
            }
            EventKind::ToolEnded { call, ok, code, bytes, wall_ms } => {
                let name = self.open.remove(&(turn, *call))?;
                let took = format!("({wall_ms:.0} ms)");
                Some(match (ok, code) {
                    (true, _) => {
                        let size = sized(*bytes, "of result");
                        (Tone::Faint, format!("{} <- {name}: {size} {took}", about(*call)))
                    }
                    (false, Some(code)) => {
                        (Tone::Error, format!("{} !! {name}: {code} {took}", about(*call)))
                    }
                    (false, None) => {
                        (Tone::Error, format!("{} !! {name}: failed {took}", about(*call)))
                    }
                })
            }
            _ => None,
        }
    }
}

fn sized(bytes: u64, what: &str) -> String {
    format!("{} {what}", counted(bytes, "byte", "bytes"))
}

/// A name that code of the session chose, as part of one line.
fn one_line(name: &str) -> String {
    let clean = agent_view::clean(name).replace(['\n', '\t'], " ");
    let mut shown: String = clean.chars().take(NAME_CHARS_MAX).collect();
    if shown.len() < clean.len() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The lines about these events of turn 2.
    fn lines(events: &[Value]) -> Vec<(Tone, String)> {
        let session = SessionId::parse("s").unwrap();
        let mut lines = ToolLines::default();
        let event = |(seq, kind): (usize, &Value)| {
            let mut event = json!({"seq": seq + 1, "at_ms": 0, "turn": 2});
            for (name, value) in kind.as_object().unwrap() {
                event[name] = value.clone();
            }
            serde_json::from_value::<Event>(event).unwrap()
        };
        events.iter().enumerate().map(event).filter_map(|one| lines.line(&session, &one)).collect()
    }

    #[test]
    fn a_call_has_a_line_when_it_begins_and_when_it_ends() {
        let shown = lines(&[
            json!({"kind": "tool_call", "call": 1, "name": "files.read", "bytes": 1000, "more": true}),
            json!({"kind": "tool_call", "call": 1, "name": "files.read", "offset": 1000, "bytes": 4}),
            json!({"kind": "tool_call", "call": 2, "name": "lookup", "bytes": 1}),
            json!({"kind": "tool_call", "call": 3, "name": "windlass.search", "bytes": 1}),
            json!({"kind": "tool_ended", "call": 3, "ok": true, "bytes": 1, "wall_ms": 0.1}),
            json!({"kind": "tool_ended", "call": 2, "ok": true, "bytes": 1, "wall_ms": 3.4}),
            json!({"kind": "tool_ended", "call": 1, "ok": false, "code": "tool_host_gone", "bytes": 0, "wall_ms": 12.0}),
        ]);
        let said: Vec<&str> = shown.iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(
            said,
            [
                "windlass: [s 2.1] -> files.read(1004 bytes of arguments)",
                "windlass: [s 2.2] -> lookup(1 byte of arguments)",
                "windlass: [s 2.2] <- lookup: 1 byte of result (3 ms)",
                "windlass: [s 2.1] !! files.read: tool_host_gone (12 ms)",
            ]
        );
        assert_eq!(shown[3].0, Tone::Error);
    }

    #[test]
    fn a_name_cannot_change_the_terminal_and_is_bounded() {
        let name = format!("a\u{1b}[2J\n\u{202e}{}", "x".repeat(1000));
        let shown = lines(&[json!({"kind": "tool_call", "call": 1, "name": name, "bytes": 0})]);
        let line = &shown[0].1;
        assert!(!line.contains(['\u{1b}', '\n', '\u{202e}']) && line.len() < 300, "{line}");
    }
}
