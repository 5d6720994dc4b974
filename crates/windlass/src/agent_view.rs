//! Shows the events of an agent's turn to a user: messages, actions with their state, questions and usage. Decides
//! what to print; [`Terminal`] prints it.

use std::io::{self, IsTerminal as _};

use windlass_client::Client;
use windlass_protocol::agent::{
    ActionKind, ActionPhase, AgentEvent, AgentEventKind, DecidedBy, PlanState, TokenUsage,
};
use windlass_protocol::api::EventItem;
use windlass_protocol::{Seq, SessionId};

use crate::terminal::{Terminal, Tone};

/// Maximum characters of an action's title or of one line of its detail.
const TITLE_CHARS_MAX: usize = 160;

/// Maximum number of lines that are shown of a failed action's detail.
const DETAIL_LINES_MAX: usize = 8;

/// What of a turn's messages is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownMessages {
    /// All, as they come. The answer is the last of them.
    Live,
    /// Only the answer, at the end: standard output is read by a program.
    AnswerOnly,
}

/// Something to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewPart {
    /// Text of a message, on standard output.
    Text(String),
    /// The end of a message's last line.
    EndLine,
    /// A line about the turn, on standard error.
    Line(Tone, String),
}

/// The view of one session's turns.
#[derive(Debug)]
pub struct AgentView {
    messages: ShownMessages,
    /// Chunks of the current message were shown.
    is_streaming: bool,
    /// A message was shown since the turn began, so the answer is known.
    has_shown: bool,
    usage: Option<TokenUsage>,
}

impl AgentView {
    pub fn new() -> Self {
        let is_terminal = io::stdout().is_terminal();
        Self::with(if is_terminal { ShownMessages::Live } else { ShownMessages::AnswerOnly })
    }

    pub fn with(messages: ShownMessages) -> Self {
        Self { messages, is_streaming: false, has_shown: false, usage: None }
    }

    /// Whether the turn's answer is to be printed at its end.
    pub fn wants_answer(&self) -> bool {
        self.messages == ShownMessages::AnswerOnly || !self.has_shown
    }

    pub fn print(&mut self, event: &AgentEvent, terminal: &mut Terminal) -> io::Result<()> {
        for part in self.show(event) {
            match part {
                ViewPart::Text(text) => terminal.out(text.as_bytes())?,
                ViewPart::EndLine => terminal.end_line()?,
                ViewPart::Line(tone, line) => terminal.line(tone, &line)?,
            }
        }
        Ok(())
    }

    /// What to print for an event.
    pub fn show(&mut self, event: &AgentEvent) -> Vec<ViewPart> {
        match &event.kind {
            AgentEventKind::Started { resume, .. } => {
                (self.has_shown, self.usage) = (false, None);
                self.between(faint(format!("conversation {resume}")))
            }
            AgentEventKind::Message { text, chunk, .. } => self.message(text, *chunk),
            AgentEventKind::Reasoning { chunk: true, .. } => Vec::new(),
            AgentEventKind::Reasoning { text, .. } => match text.lines().next() {
                Some(first) => self.between(faint(format!("thinks: {}", cut(first)))),
                None => Vec::new(),
            },
            AgentEventKind::Action { action, title, phase, ok, detail, .. } => {
                self.action(*action, title, *phase, *ok, detail.as_deref())
            }
            AgentEventKind::Plan { steps } => {
                let step = |step: &windlass_protocol::agent::PlanStep| {
                    let mark = match step.state {
                        PlanState::Pending => " ",
                        PlanState::InProgress => ">",
                        PlanState::Completed => "x",
                    };
                    faint(format!("  [{mark}] {}", cut(&step.text)))
                };
                self.between_all(steps.iter().map(step).collect())
            }
            AgentEventKind::Permission { id, title, .. } => {
                let line = ViewPart::Line(Tone::Busy, format!("? {} [{id}]", cut(title)));
                self.between(line)
            }
            AgentEventKind::Decision { id, allowed, by, .. } => {
                let what = if *allowed { "allowed" } else { "refused" };
                let by = match by {
                    DecidedBy::Client => "by a client",
                    DecidedBy::Policy => "by the session's setting",
                    DecidedBy::Deadline => "because nobody answered in time",
                    DecidedBy::Interrupt => "because the turn was stopped",
                    DecidedBy::Engine => "because the agent does not ask any more",
                };
                self.between(faint(format!("  [{id}] {what} {by}")))
            }
            AgentEventKind::Usage(usage) => {
                self.usage = Some(*usage);
                Vec::new()
            }
            AgentEventKind::Notice { text, .. } => self.between(faint(format!("! {}", cut(text)))),
            AgentEventKind::Completed { error, .. } => {
                let mut parts = Vec::new();
                if let Some(error) = error {
                    let message = clean(&error.message).replace('\n', " ");
                    let line = format!("{}: {message}", error.name);
                    parts.push(ViewPart::Line(Tone::Error, line));
                }
                parts.extend(self.usage.take().map(|usage| faint(figures(&usage))));
                self.between_all(parts)
            }
        }
    }

    fn message(&mut self, text: &str, chunk: bool) -> Vec<ViewPart> {
        if self.messages == ShownMessages::AnswerOnly {
            return Vec::new();
        }
        self.has_shown = true;
        match (chunk, self.is_streaming) {
            (true, _) => {
                self.is_streaming = true;
                vec![ViewPart::Text(clean(text))]
            }
            // The chunks were shown already.
            (false, true) => {
                self.is_streaming = false;
                vec![ViewPart::EndLine]
            }
            (false, false) => vec![ViewPart::Text(clean(text)), ViewPart::EndLine],
        }
    }

    fn action(
        &mut self,
        action: ActionKind,
        title: &str,
        phase: ActionPhase,
        ok: Option<bool>,
        detail: Option<&str>,
    ) -> Vec<ViewPart> {
        let sign = match action {
            ActionKind::Command => "$",
            ActionKind::FileChange => "~",
            ActionKind::Note => "-",
            ActionKind::Warning => "!",
            _ => "*",
        };
        let title = cut(title);
        let mut parts = Vec::new();
        match (phase, ok) {
            (ActionPhase::Started, _) if action != ActionKind::Note => {
                parts.push(ViewPart::Line(Tone::Plain, format!("{sign} {title}")));
            }
            (ActionPhase::Completed, Some(false)) => {
                parts.push(ViewPart::Line(Tone::Error, format!("{sign} {title}: failed")));
                let lines: Vec<&str> = detail.unwrap_or_default().lines().collect();
                let from = lines.len().saturating_sub(DETAIL_LINES_MAX);
                parts.extend(lines[from..].iter().map(|line| faint(format!("  {}", cut(line)))));
            }
            (ActionPhase::Completed, _) if action == ActionKind::Note => {
                parts.push(faint(format!("{sign} {title}")));
            }
            _ => {}
        }
        self.between_all(parts)
    }

    fn between(&mut self, line: ViewPart) -> Vec<ViewPart> {
        self.between_all(vec![line])
    }

    /// Lines that end a message that streams.
    fn between_all(&mut self, lines: Vec<ViewPart>) -> Vec<ViewPart> {
        let ends = !lines.is_empty() && std::mem::take(&mut self.is_streaming);
        ends.then_some(ViewPart::EndLine).into_iter().chain(lines).collect()
    }
}

/// The agent event of a display, if the display is one.
pub async fn read(
    client: &Client,
    session: &SessionId,
    item: &EventItem,
) -> anyhow::Result<Option<AgentEvent>> {
    let seq: Seq = item.event.seq;
    // A long event has its body elsewhere. A body in several parts is read as a whole with its last part.
    let whole = match &item.text {
        Some(text) => serde_json::from_str(text).ok(),
        None => None,
    };
    match whole {
        Some(event) => Ok(Some(event)),
        None => {
            let display = client.display(session, seq).await?;
            Ok(serde_json::from_slice(&display.bytes).ok())
        }
    }
}

fn faint(line: String) -> ViewPart {
    ViewPart::Line(Tone::Faint, line)
}

fn figures(usage: &TokenUsage) -> String {
    let cost = usage
        .cost_usd
        .filter(|cost| *cost > 0.0)
        .map(|cost| format!(", ${cost:.4}"))
        .unwrap_or_default();
    format!("tokens: {} in, {} out{cost}", usage.input_tokens, usage.output_tokens)
}

/// Text of a model without characters that could change the terminal or the order of what it shows.
pub fn clean(text: &str) -> String {
    text.chars().filter(|char| matches!(char, '\n' | '\t') || is_plain(*char)).collect()
}

/// Whether a terminal only shows the character, and shows it where it stands.
pub fn is_plain(char: char) -> bool {
    let reorders_or_hides = matches!(
        char,
        '\u{61c}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    );
    !char.is_control() && !reorders_or_hides
}

/// The id of the permission that a prompt asks for.
pub fn permission_in(prompt: &str) -> Option<String> {
    let (_, rest) = prompt.split_once('[')?;
    let (id, _) = rest.split_once(']')?;
    let digits = id.strip_prefix('p')?;
    let is_id = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_id.then(|| id.to_owned())
}

/// An answer that names the permission that the user was shown. A user types the word alone.
pub fn named(permission: Option<&str>, line: Vec<u8>) -> Vec<u8> {
    let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).count();
    match permission {
        Some(id) if words == 1 => [id.as_bytes(), b" ", &line].concat(),
        _ => line,
    }
}

/// The first line of a text, within the limit.
fn cut(text: &str) -> String {
    let line = clean(text.lines().next().unwrap_or_default());
    match line.char_indices().nth(TITLE_CHARS_MAX) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(messages: ShownMessages, events: &[serde_json::Value]) -> String {
        let mut view = AgentView::with(messages);
        let mut shown = String::new();
        for event in events {
            for part in view.show(&serde_json::from_value(event.clone()).unwrap()) {
                match part {
                    ViewPart::Text(text) => shown += &text,
                    ViewPart::EndLine => shown += "|\n",
                    ViewPart::Line(_, line) => shown += &format!("# {line}\n"),
                }
            }
        }
        shown
    }

    #[test]
    fn an_answer_names_the_permission_that_was_shown() {
        let prompt = "codex asks [p12]: run [x]\nAnswer p12 followed by one of allow: ";
        let permission = permission_in(prompt);
        assert_eq!(permission.as_deref(), Some("p12"));
        for (line, sent) in [("allow\n", "p12 allow\n"), ("p3 deny\n", "p3 deny\n"), ("", "")] {
            assert_eq!(named(permission.as_deref(), line.into()), sent.as_bytes());
        }
        assert_eq!(permission_in("name? [y/n]"), None);
        assert_eq!(named(None, b"allow".into()), b"allow");
    }

    #[test]
    fn a_turn_reads_like_a_conversation() {
        let events = [
            json!({"type": "started", "engine": "codex", "resume": "codex:a"}),
            json!({"type": "message", "text": "I ", "chunk": true}),
            json!({"type": "message", "text": "look", "chunk": true}),
            json!({"type": "message", "text": "I look"}),
            json!({"type": "action", "id": "1", "action": "command", "title": "ls\nmore", "phase": "started"}),
            json!({"type": "action", "id": "1", "action": "command", "title": "ls", "phase": "completed",
                   "ok": false, "detail": "no\nsuch"}),
            json!({"type": "permission", "id": "p1", "title": "run rm", "options": []}),
            json!({"type": "decision", "id": "p1", "allowed": false, "by": "deadline"}),
            json!({"type": "plan", "steps": [{"text": "a", "state": "completed"}]}),
            json!({"type": "message", "text": "done \u{1b}[31mred"}),
            json!({"type": "usage", "input_tokens": 5, "output_tokens": 7, "cost_usd": 0.01}),
            json!({"type": "completed", "engine": "codex", "ok": true, "answer": "done"}),
        ];
        assert_eq!(
            check(ShownMessages::Live, &events),
            "# conversation codex:a\nI look|\n# $ ls\n# $ ls: failed\n#   no\n#   such\n# ? run rm [p1]\n\
             #   [p1] refused because nobody answered in time\n#   [x] a\ndone [31mred|\n\
             # tokens: 5 in, 7 out, $0.0100\n"
        );
        assert!(!check(ShownMessages::AnswerOnly, &events).contains("look"));
    }
}
