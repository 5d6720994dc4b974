//! What a model reads about the tools: names, short descriptions, and the schemas of arguments and
//! results. This text is in the context of every agent all the time, so it is short.

use std::sync::{Arc, OnceLock};

use rmcp::model::{JsonObject, MetaObject, Tool, ToolAnnotations};
use serde_json::{Value, json};
use windlass_protocol::api::WorkerList;
use windlass_protocol::kinds::{self, WorkerKind};

pub(crate) const RUN: &str = "run";
pub(crate) const CONTINUE: &str = "continue";
pub(crate) const INTERRUPT: &str = "interrupt";
pub(crate) const RESET: &str = "reset";
pub(crate) const SESSIONS: &str = "sessions";
pub(crate) const READ_OUTPUT: &str = "read_output";

/// Instructions that a client may show the model once.
pub(crate) const INSTRUCTIONS: &str = "Run code here instead of starting interpreters: sessions persist between calls, are confined to the \
     project, and show plots as images. Leave `session` out to use the project's own; name another one \
     (like \"analysis\") for parallel work. Each language has its own sessions. The note about a new session says \
     which interpreter it has, what it may write, its network and how packages get in. If the sandbox refuses \
     something, the reply says so and names the option with which the user can allow it: tell the user, do not work \
     around it.";

/// The instructions for the agent of a session.
pub(crate) const AGENT_INSTRUCTIONS: &str = "Run code here instead of starting interpreters: sessions persist between calls, see the same files as \
     you, and show plots as images. Leave `session` out to use your own; name another one (like \"analysis\") \
     for parallel work. Each language has its own sessions. Code can call the host's tools: in Python, \
     `tools.search(\"words\")` finds them.";

/// The tools, most useful first.
pub(crate) fn tools() -> &'static [Tool] {
    static TOOLS: OnceLock<Vec<Tool>> = OnceLock::new();
    TOOLS.get_or_init(|| {
        vec![run(), continue_turn(), interrupt(), reset(), sessions(), read_output()]
    })
}

fn run() -> Tool {
    tool(
        RUN,
        "Run code",
        "Run code in a persistent session: variables, imports and files stay for the next call. The last \
         expression's value is shown, as in a REPL; figures come as images. Code that takes longer than \
         wait_seconds goes on in the background: use continue.",
        json!({
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "The code to run"},
                "language": language(),
                "packages": packages(),
                "session": session(),
                "wait_seconds": wait(),
                "max_tokens": tokens(),
            },
            "required": ["code"],
            "additionalProperties": false,
        }),
        turn_reply(),
        ToolAnnotations::new()
            .read_only(false)
            .destructive(true)
            .idempotent(false)
            .open_world(true),
    )
    .with_meta(always_loaded())
}

fn packages() -> Value {
    json!({
        "type": "array",
        "items": {"type": "string"},
        "description": "Python packages for a new session, like \"pandas\" or \"numpy>=2\"",
    })
}

/// The schema of the language, before the node's workers are known.
fn language() -> Value {
    json!({"type": "string", "default": kinds::DEFAULT.name})
}

/// Lists the workers that can start on this machine in the schema of `run`. Without the node's list, these are
/// the built-in ones whose interpreter is on PATH.
pub(crate) fn name_languages(tools: &mut [Tool], workers: Option<&WorkerList>) {
    let names: Vec<&str> = match workers {
        Some(list) => languages(list),
        // Kinds without file extensions need more than an interpreter.
        None => {
            let usual = kinds::ALL.iter().filter(|kind| !kind.extensions.is_empty());
            let is_there = |kind: &&WorkerKind| {
                kind.name == kinds::DEFAULT.name || is_on_path(kind.interpreter)
            };
            usual.filter(is_there).map(|kind| kind.name).collect()
        }
    };
    let Some(run) = tools.iter_mut().find(|tool| tool.name == RUN) else { return };
    let schema = Arc::make_mut(&mut run.input_schema);
    if let Some(language) = schema.get_mut("properties").and_then(|all| all.get_mut("language")) {
        language["enum"] = json!(names);
    }
}

/// The languages of the workers that can start.
pub(crate) fn languages(list: &WorkerList) -> Vec<&str> {
    let there = list.workers.iter().filter(|worker| worker.missing.is_none());
    let has_variants = |name: &str| kinds::find(name).is_some_and(|kind| kind.has_variants);
    there.map(|worker| &*worker.name).filter(|name| !has_variants(name)).collect()
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.is_absolute() && dir.join(program).is_file())
}

/// Claude Code shows a model only the names of tools until it searches for one. This flag makes it
/// show `run` always.
fn always_loaded() -> MetaObject {
    MetaObject(JsonObject::from_iter([("anthropic/alwaysLoad".to_owned(), Value::Bool(true))]))
}

fn continue_turn() -> Tool {
    tool(
        CONTINUE,
        "Wait for code that runs, or answer it",
        "Wait for the running code of a session, or give it the line that it asks for (input). The reply has \
         the output that is new since the last reply.",
        json!({
            "type": "object",
            "properties": {
                "session": session(),
                "turn": {"type": "string", "description": "Which run; default: the session's newest"},
                "input": {"type": "string", "description": "A line for code that waits for input"},
                "from": from(),
                "wait_seconds": wait(),
                "max_tokens": tokens(),
            },
            "additionalProperties": false,
        }),
        turn_reply(),
        ToolAnnotations::new()
            .read_only(false)
            .destructive(false)
            .idempotent(false)
            .open_world(true),
    )
}

fn interrupt() -> Tool {
    tool(
        INTERRUPT,
        "Stop code that runs",
        "Stop what a session runs, as Ctrl-C does. Its variables stay.",
        json!({
            "type": "object",
            "properties": {"session": session(), "from": from()},
            "additionalProperties": false,
        }),
        turn_reply(),
        ToolAnnotations::new()
            .read_only(false)
            .destructive(false)
            .idempotent(true)
            .open_world(false),
    )
}

fn reset() -> Tool {
    tool(
        RESET,
        "Start afresh",
        "Give a session a fresh interpreter: variables are gone, files stay. With end, the session \
         itself ends.",
        json!({
            "type": "object",
            "properties": {
                "session": session(),
                "end": {"type": "boolean", "default": false, "description": "End the session"},
            },
            "additionalProperties": false,
        }),
        json!({
            "type": "object",
            "properties": {"session": {"type": "string"}, "state": {"type": "string"}},
            "required": ["session", "state"],
        }),
        ToolAnnotations::new()
            .read_only(false)
            .destructive(true)
            .idempotent(true)
            .open_world(false),
    )
}

fn sessions() -> Tool {
    tool(
        SESSIONS,
        "List sessions",
        "The sessions that are alive, and what each is doing.",
        json!({"type": "object", "properties": {}, "additionalProperties": false}),
        json!({
            "type": "object",
            "properties": {"sessions": {"type": "array", "items": {
                "type": "object",
                "properties": {
                    "session": {"type": "string"},
                    "state": {"type": "string"},
                    "language": {"type": "string"},
                    "workspace": {"type": "string"},
                    "turns": {"type": "integer"},
                    "running": {"type": "string"},
                },
                "required": ["session", "state", "workspace", "turns"],
            }}},
            "required": ["sessions"],
        }),
        ToolAnnotations::new().read_only(true).open_world(false),
    )
}

fn read_output() -> Tool {
    tool(
        READ_OUTPUT,
        "Read output",
        "Read what a session printed, where a reply left some out: from a byte, the tail, or the \
         lines that hold a text.",
        json!({
            "type": "object",
            "properties": {
                "session": session(),
                "turn": {"type": "string", "description": "Only this run's output"},
                "from": {"type": "integer", "minimum": 0, "description": "The first byte"},
                "tail": {"type": "integer", "minimum": 1, "description": "Only the last so many bytes"},
                "search": {"type": "string", "description": "Only lines that hold this text"},
                "max_tokens": tokens(),
            },
            "additionalProperties": false,
        }),
        json!({
            "type": "object",
            "properties": {
                "session": {"type": "string"},
                "output": {"type": "string"},
                "from": {"type": "integer"},
                "next": {"type": "integer"},
                "total": {"type": "integer"},
                "more": {"type": "boolean"},
            },
            "required": ["session", "output", "more"],
        }),
        ToolAnnotations::new().read_only(true).open_world(false),
    )
}

/// The result of `run`, `continue` and `interrupt`.
fn turn_reply() -> Value {
    json!({
        "type": "object",
        "properties": {
            "session": {"type": "string"},
            "turn": {"type": "string"},
            "state": {"enum": ["done", "running", "queued", "waiting_for_input", "idle"]},
            "outcome": {"enum": ["ok", "error", "interrupted", "timed_out", "lost"]},
            "output": {"type": "string"},
            "from": {"type": "integer"},
            "next": {"type": "integer"},
            "omitted_bytes": {"type": "integer"},
            "error": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "message": {"type": "string"},
                    "code": {"type": "string"},
                },
                "required": ["name", "message"],
            },
            "prompt": {"type": "string"},
            "secret": {"type": "boolean"},
            "images": {"type": "integer"},
            "seconds": {"type": "number"},
            "note": {"type": "string"},
        },
        "required": ["session", "state", "output"],
    })
}

fn session() -> Value {
    json!({"type": "string", "description": "Which session; default: the project's own"})
}

/// The first byte of output in the reply.
fn from() -> Value {
    json!({"type": "integer", "minimum": 0, "description": "Output from this byte; the last reply names it"})
}

fn wait() -> Value {
    json!({"type": "number", "minimum": 0, "maximum": 600, "default": 45})
}

fn tokens() -> Value {
    json!({"type": "integer", "default": 6000, "description": "The most output in the reply"})
}

fn tool(
    name: &'static str,
    title: &str,
    description: &str,
    input: Value,
    output: Value,
    annotations: ToolAnnotations,
) -> Tool {
    Tool::new(name, description.to_owned(), object(input))
        .with_title(title)
        .with_raw_output_schema(object(output))
        .with_annotations(annotations)
}

fn object(schema: Value) -> Arc<JsonObject> {
    match schema {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments;

    /// Limit for the characters that a model reads about the tools, without the result schemas.
    /// That is about a quarter as many tokens.
    const CHARS_MAX: usize = 4000;

    #[test]
    fn the_tools_are_few_and_told_in_few_words() {
        assert_eq!(tools().len(), 6);
        let told: usize = tools()
            .iter()
            .map(|tool| {
                let shape = Value::Object((*tool.input_schema).clone()).to_string();
                tool.name.len() + tool.description.as_ref().map_or(0, |d| d.len()) + shape.len()
            })
            .sum();
        assert!(told <= CHARS_MAX, "{told}");
    }

    #[test]
    fn what_a_schema_names_is_taken_and_what_it_requires_is_missed() {
        fn takes<T: serde::de::DeserializeOwned>(name: &str) {
            let tool = tools().iter().find(|tool| tool.name == name).unwrap();
            let example = |kind: &Value| match kind["type"].as_str() {
                Some("string") => json!("a"),
                Some("boolean") => json!(true),
                Some("integer") => json!(1),
                Some("array") => json!(["a"]),
                _ => json!(1.5),
            };
            let all = tool.input_schema["properties"].as_object().unwrap();
            let all = all.iter().map(|(name, kind)| (name.clone(), example(kind))).collect();
            assert!(arguments::read::<T>(Some(all)).is_ok(), "{name}");
            let required = tool.input_schema.contains_key("required");
            assert_eq!(arguments::read::<T>(None).is_err(), required, "{name}");
        }
        takes::<arguments::RunArguments>(RUN);
        takes::<arguments::ContinueArguments>(CONTINUE);
        takes::<arguments::InterruptArguments>(INTERRUPT);
        takes::<arguments::ResetArguments>(RESET);
        takes::<arguments::SessionsArguments>(SESSIONS);
        takes::<arguments::ReadOutputArguments>(READ_OUTPUT);
    }
}
