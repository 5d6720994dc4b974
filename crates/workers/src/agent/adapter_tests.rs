//! Helpers of the adapters' tables.

use serde_json::Value;
use windlass_protocol::agent::AgentEventKind;

use super::engine::{Engine, EngineInput, EngineOutput};
use super::prompt::Prompt;

/// What the outputs are, one line each.
pub fn shown(outputs: &[EngineOutput]) -> String {
    let line = |output: &EngineOutput| match output {
        EngineOutput::Send(line) => {
            let what = ["method", "type"].iter().find_map(|key| line[*key].as_str());
            match what {
                Some(what) => format!("send {what}"),
                None => format!("send {}", sorted(line)),
            }
        }
        EngineOutput::SendLast(text) => format!("send last {text}"),
        EngineOutput::Ready { id } => format!("ready {id}"),
        EngineOutput::Event(kind) => event(kind),
        EngineOutput::Ask(question) => format!("ask {} {:?}", question.id, question.title),
        EngineOutput::Withdraw { permission } => format!("withdraw {permission}"),
        EngineOutput::Done(end) => {
            let error =
                end.error.as_ref().map_or(String::new(), |error| format!(" {}", error.message));
            let interrupted = if end.interrupted { " interrupted" } else { "" };
            format!("done {}{interrupted}{error}", end.stop_reason.as_deref().unwrap_or("-"))
        }
        EngineOutput::Failed(error) => format!("failed {}: {}", error.name, error.message),
    };
    outputs.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// The value with the keys of all objects in order: whether they keep their order depends on the build.
pub fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| name.as_str());
            fields.into_iter().map(|(name, field)| (name.clone(), sorted(field))).collect()
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

fn event(kind: &AgentEventKind) -> String {
    match kind {
        AgentEventKind::Message { text, chunk, phase } => {
            let sign = if *chunk { "+" } else { "=" };
            format!(
                "message{sign}{text}{}",
                phase.as_ref().map_or(String::new(), |phase| format!(" ({phase})"))
            )
        }
        AgentEventKind::Reasoning { text, chunk } => {
            format!("reasoning{}{text}", if *chunk { "+" } else { "=" })
        }
        AgentEventKind::Action { id, action, title, phase, ok, detail } => {
            format!("{id} {action:?} {title:?} {phase:?} {ok:?} {detail:?}")
        }
        AgentEventKind::Plan { steps } => format!("plan of {}", steps.len()),
        AgentEventKind::Usage(usage) => {
            format!("usage {}/{}", usage.input_tokens, usage.output_tokens)
        }
        AgentEventKind::Notice { text, id } => format!("notice {id:?} {text}"),
        other => format!("{other:?}"),
    }
}

/// Tells an adapter that its process has started.
pub fn begin(engine: &mut dyn Engine, resume: Option<&str>) -> Vec<EngineOutput> {
    let prompt = Prompt { text: "hello".to_owned(), files: Vec::new() };
    engine.step(EngineInput::Begin { resume, prompt: &prompt })
}

/// Feeds an adapter its own lines and returns what follows from them. `rows`: a line of the engine, what follows.
pub fn check(engine: &mut dyn Engine, rows: &[(&str, &str)]) {
    for (line, expected) in rows {
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(shown(&engine.step(EngineInput::Line(&value))), *expected, "{line}");
    }
}
