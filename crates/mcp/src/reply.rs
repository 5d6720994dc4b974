//! The answer to a call: readable text, images and links for the model, the same as structured
//! content for programs, and faults as errors with a remedy.

use rmcp::model::{CallToolResult, ContentBlock, Resource};
use serde::Serialize;
use serde_json::{Value, json};
use windlass_protocol::api::{StdinWait, Turn, TurnState};
use windlass_protocol::event::{Receipt, TurnError};
use windlass_protocol::refusal::PolicyRefusal;
use windlass_protocol::{Outcome, SessionId, TurnId};

use crate::fault::{ask_in_terminal, decide_in_terminal};
use crate::output::OutputPart;
use crate::permission::PermissionPrompt;
use crate::resources;

/// A turn with its images, links and note.
#[derive(Debug)]
pub(crate) struct TurnReply {
    pub turn: Turn,
    pub output: OutputPart,
    pub images: Vec<ContentBlock>,
    pub links: Vec<Resource>,
    /// A note about the session for the model.
    pub note: Option<String>,
}

/// The structured content of a reply. `schema` describes its shape.
#[derive(Debug, Serialize)]
struct Structured<'t> {
    session: &'t SessionId,
    turn: &'t TurnId,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    output: &'t str,
    from: u64,
    next: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'t TurnError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'t str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    images: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl TurnReply {
    pub fn into_result(self) -> CallToolResult {
        let remarks = self.remarks();
        let structured = self.structured(&remarks);
        let failed = !matches!(self.turn.outcome, None | Some(Outcome::Ok));
        let mut text = self.output.text;
        if text.is_empty() && self.output.from > 0 {
            text.push_str("(no new output)");
        }
        for remark in &remarks {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(remark);
        }
        if text.is_empty() {
            text.push_str(if self.images.is_empty() { "(no output)" } else { "(an image)" });
        }
        let mut content = vec![ContentBlock::text(text)];
        content.extend(self.images);
        content.extend(self.links.into_iter().map(ContentBlock::resource_link));
        let mut result = match failed {
            true => CallToolResult::error(content),
            false => CallToolResult::success(content),
        };
        result.structured_content = Some(structured);
        result
    }

    fn structured(&self, remarks: &[String]) -> Value {
        let (turn, output) = (&self.turn, &self.output);
        let structured = Structured {
            session: &turn.session,
            turn: &turn.id,
            state: state_of(turn),
            outcome: turn.outcome,
            output: &output.text,
            from: output.from,
            next: output.next,
            omitted_bytes: Some(output.omitted).filter(|bytes| *bytes > 0),
            error: turn.error.as_ref(),
            prompt: turn.stdin_wait.as_ref().map(|wait| wait.prompt.as_str()),
            secret: turn.stdin_wait.as_ref().filter(|wait| wait.secret).map(|_| true),
            images: Some(self.images.len()).filter(|count| *count > 0),
            seconds: turn.usage.map(|usage| usage.wall_ms / 1000.0),
            note: (!remarks.is_empty()).then(|| remarks.join("\n")),
        };
        serde_json::to_value(structured).unwrap_or_default()
    }

    /// Facts about the turn that are not in its output.
    fn remarks(&self) -> Vec<String> {
        let turn = &self.turn;
        let mut remarks = Vec::new();
        let from = Some(self.output.from).filter(|from| *from > 0);
        remarks.extend(from.map(|from| format!("[output from byte {from} on]")));
        remarks.extend(self.ending());
        remarks.extend(turn.receipt.as_ref().map(|lost| receipt(lost, &turn.session)));
        remarks.extend(turn.refusal.as_ref().map(refused));
        remarks.extend(self.note.as_ref().map(|note| format!("[{note}]")));
        remarks
    }

    fn ending(&self) -> Option<String> {
        let turn = &self.turn;
        if let Some(wait) = &turn.stdin_wait {
            return Some(asking(&turn.session, wait, &self.next_from(",")));
        }
        match (turn.state, turn.outcome) {
            (TurnState::Ended, Some(Outcome::Error)) => {
                let error = turn.error.as_ref()?;
                // The interpreter's traceback is already in the output.
                let said = error.code.is_none() && self.output.text.contains(&error.name);
                (!said).then(|| format!("[{}]", describe(error)))
            }
            (TurnState::Ended, Some(Outcome::Ok) | None) => None,
            (TurnState::Ended, Some(outcome)) => {
                let error = turn.error.as_ref().map(describe).unwrap_or_default();
                Some(match outcome {
                    Outcome::Interrupted => "[interrupted; variables are kept]".to_owned(),
                    Outcome::TimedOut => format!("[the turn's deadline passed] {error}"),
                    _ => format!("[lost] {error}"),
                })
            }
            (TurnState::Waiting, _) => Some(format!(
                "[waiting: session {} is starting or runs other code; call continue to wait]",
                turn.session
            )),
            _ => Some(format!(
                "[still running as turn {} of session {}; call continue{} to wait, interrupt to stop]",
                turn.id,
                turn.session,
                self.next_from(" with")
            )),
        }
    }

    /// The argument with which the next reply begins where this one ends.
    fn next_from(&self, word: &str) -> String {
        match self.output.next {
            0 => String::new(),
            next => format!("{word} from {next}"),
        }
    }
}

fn state_of(turn: &Turn) -> &'static str {
    match turn.state {
        TurnState::Waiting => "queued",
        TurnState::Running | TurnState::Interrupting => "running",
        TurnState::AwaitingInput => "waiting_for_input",
        TurnState::Ended => "done",
    }
}

fn asking(session: &SessionId, wait: &StdinWait, next_from: &str) -> String {
    let prompt = wait.prompt.trim();
    if let Some(permission) = PermissionPrompt::of(wait) {
        let question = permission.question;
        return format!("[waiting for a permission: {question:?}] {}", decide_in_terminal(session));
    }
    match wait.secret {
        true => format!("[waiting for a secret: {prompt:?}] {}", ask_in_terminal(session)),
        false => format!("[waiting for input: {prompt:?}; call continue with input{next_from}]"),
    }
}

fn describe(error: &TurnError) -> String {
    match error.code {
        Some(code) => format!("{code}: {}", error.message),
        None => format!("{}: {}", error.name, error.message),
    }
}

fn receipt(receipt: &Receipt, session: &SessionId) -> String {
    let list = |items: &[String]| match items {
        [] => "nothing".to_owned(),
        items => items.join(", "),
    };
    let call = json!({"session": session});
    let kept = receipt.kept_at(&format!("read_output with {call}"));
    format!("[kept: {}; lost: {}]", list(&kept), list(&receipt.lost))
}

/// What the policy refused, and who can allow it. The options of the sentence are options of `windlass mcp` too.
fn refused(refusal: &PolicyRefusal) -> String {
    let who = match &refusal.option {
        Some(_) => {
            "; only the user can allow it, with this option of `windlass mcp` in the configuration of this client"
        }
        None => "",
    };
    format!("[sandbox: {}{who}]", refusal.message)
}

/// A link to the whole output of a turn, if the reply leaves some out.
pub(crate) fn output_link(turn: &Turn, output: &OutputPart) -> Option<Resource> {
    (output.omitted > 0).then(|| {
        Resource::new(resources::turn_output(&turn.session, &turn.id), "output")
            .with_title(format!("All output of turn {}", turn.id))
            .with_mime_type("text/plain")
            .with_size(turn.output.bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;

    fn reply(turn: Value) -> CallToolResult {
        reply_from(turn, 0)
    }

    fn reply_from(turn: Value, from: u64) -> CallToolResult {
        let mut whole = json!({
            "id": "t1", "session": "s", "number": 1, "state": "ended",
            "output": {"text": "", "bytes": 0, "from": 0},
        });
        for (name, value) in turn.as_object().unwrap() {
            whole[name] = value.clone();
        }
        let turn: Turn = serde_json::from_value(whole).unwrap();
        let (text, next) = (turn.output.text[from as usize..].to_owned(), turn.output.bytes);
        let output = OutputPart { text, from, next, omitted: 0 };
        TurnReply { turn, output, images: Vec::new(), links: Vec::new(), note: None }.into_result()
    }

    fn text(result: &CallToolResult) -> &str {
        &result.content[0].as_text().unwrap().text
    }

    #[test]
    fn output_alone_is_all_that_is_said() {
        let done =
            reply(json!({"outcome": "ok", "output": {"text": "42\n", "bytes": 3, "from": 0}}));
        assert_eq!(text(&done), "42\n");
        assert_ne!(done.is_error, Some(true));
        let structured = done.structured_content.unwrap();
        assert_eq!((&structured["state"], &structured["output"]), (&json!("done"), &json!("42\n")));
        assert_eq!(text(&reply(json!({"outcome": "ok"}))), "(no output)");
    }

    #[test]
    fn an_exception_is_an_error_of_the_tool_and_said_once() {
        let failed = reply(json!({
            "outcome": "error", "error": {"name": "ZeroDivisionError", "message": "division by zero"},
            "output": {"text": "ZeroDivisionError: division by zero\n", "bytes": 36, "from": 0},
        }));
        assert_eq!(failed.is_error, Some(true));
        assert_eq!(text(&failed).matches("ZeroDivisionError").count(), 1);
    }

    #[test]
    fn a_reply_with_new_output_says_where_it_begins_and_ends() {
        let at = |state: &str, from: u64| {
            let output = json!({"text": "one\ntwo\n", "bytes": 8, "from": 0});
            let turn = json!({"state": state, "output": output});
            reply_from(turn, from)
        };
        let said = at("running", 4);
        assert!(text(&said).starts_with("two\n[output from byte 4 on]\n"), "{}", text(&said));
        assert!(text(&said).contains("call continue with from 8 to wait"), "{}", text(&said));
        let structured = said.structured_content.unwrap();
        assert_eq!((&structured["from"], &structured["next"]), (&json!(4), &json!(8)));
        assert_eq!(text(&at("ended", 8)), "(no new output)\n[output from byte 8 on]");
        assert_eq!(text(&at("ended", 0)), "one\ntwo\n");
    }

    #[test]
    fn a_loss_comes_with_its_receipt() {
        let session = SessionId::parse("s").unwrap();
        let lost = reply(json!({
            "outcome": "lost",
            "error": {"code": "worker_died", "name": "WorkerDied", "message": "it was killed"},
            "receipt": {"kept": ["files", windlass_protocol::event::output_kept(&session)], "lost": ["variables"]},
        }));
        assert_eq!(lost.is_error, Some(true));
        assert!(text(&lost).contains("worker_died: it was killed"), "{}", text(&lost));
        let kept =
            "[kept: files, output so far: read_output with {\"session\":\"s\"}; lost: variables]";
        assert!(text(&lost).contains(kept), "{}", text(&lost));
    }

    #[test]
    fn a_refusal_of_the_policy_says_who_can_allow_it() {
        let refused = |option: Option<&str>| {
            let message = "this session has no network; allow a host with `--allow-host a.org`";
            let refusal = json!({"control": "network", "tried": "connect to a.org", "message": message,
                "option": option});
            let error = json!({"name": "URLError", "message": "unreachable"});
            let failed = reply(json!({"outcome": "error", "error": error, "refusal": refusal}));
            text(&failed).to_owned()
        };
        let said = refused(Some("--allow-host a.org"));
        assert!(
            said.contains("[sandbox: this session has no network; allow a host with"),
            "{said}"
        );
        assert!(said.contains("of `windlass mcp`"), "{said}");
        assert!(!refused(None).contains("windlass mcp"));
    }

    #[test]
    fn a_secret_is_asked_for_in_a_terminal() {
        let waits = |secret| {
            let wait = json!({"prompt": "Password: ", "secret": secret});
            reply(json!({"state": "awaiting_input", "stdin_wait": wait}))
        };
        assert!(text(&waits(true)).contains("windlass attach s"));
        assert!(!text(&waits(true)).contains("continue with input"));
        assert!(text(&waits(false)).contains("continue with input"));
        assert_eq!(waits(true).structured_content.unwrap()["secret"], json!(true));
    }

    #[test]
    fn a_fault_says_what_to_do() {
        let fault = Fault::NoSession("x".to_owned()).into_result();
        assert_eq!(fault.is_error, Some(true));
        assert_eq!(
            text(&fault),
            "session_not_found: there is no session x\ncall sessions to see which there are"
        );
    }
}
