//! The program `windlass-tool`: calls a host tool from a shell session and prints the result.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use windlass_procs::inherited::take_inherited;

use crate::shell::{TOOL_SUCCESS, send_descriptor};

const USAGE: &str = "\
usage: windlass-tool NAME [--key value]...   call a host tool; a value is JSON, or else text
       windlass-tool NAME -                  take the arguments as a JSON object from standard input
       windlass-tool --list                  list all tools
       windlass-tool --help NAME             describe a tool
options before NAME:
       --raw                print a text result as it is, not as JSON
       --deadline-ms MS     give up after this time
";

/// The environment variable with the descriptor of the channel to the worker.
const CHANNEL_VARIABLE: &str = "WINDLASS_TOOL_FD";

const USAGE_STATUS: u8 = 2;

/// What the command line asks for.
#[derive(Debug, PartialEq)]
struct ToolCommand {
    name: String,
    arguments: ToolArguments,
    raw: bool,
    deadline_ms: Option<u64>,
}

#[derive(Debug, PartialEq)]
enum ToolArguments {
    Named(Map<String, Value>),
    FromInput,
}

pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<String> =
        arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    let command = match parse(&arguments) {
        Ok(Some(command)) => command,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprint!("windlass-tool: {problem}\n{USAGE}");
            return ExitCode::from(USAGE_STATUS);
        }
    };
    match call(&command) {
        Ok(text) => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(message) => {
            eprintln!("windlass-tool: {message}");
            ExitCode::FAILURE
        }
    }
}

/// `None` if the usage is wanted.
fn parse(arguments: &[String]) -> Result<Option<ToolCommand>, String> {
    let mut raw = false;
    let mut deadline_ms = None;
    let mut rest = arguments.iter().map(String::as_str);
    let name = loop {
        match rest.next() {
            None | Some("-h") => return Ok(None),
            Some("--help") => match rest.next() {
                None => return Ok(None),
                Some(name) => {
                    let named = Map::from_iter([("name".to_owned(), json!(name))]);
                    return Ok(Some(of_node("windlass.describe", named)));
                }
            },
            Some("--list") => return Ok(Some(of_node("windlass.list", Map::new()))),
            Some("--raw") => raw = true,
            Some("--deadline-ms") => {
                let text = rest.next().unwrap_or_default();
                let number = text.parse().map_err(|_| format!("{text:?} is no number"))?;
                deadline_ms = Some(number);
            }
            Some(option) if option.starts_with('-') => return Err(format!("unknown option {option}")),
            Some(name) => break name.to_owned(),
        }
    };
    let mut named = Map::new();
    let mut from_input = false;
    while let Some(argument) = rest.next() {
        if argument == "-" {
            from_input = true;
            continue;
        }
        let Some(key) = argument.strip_prefix("--") else {
            return Err(format!("{argument:?} is not --key"));
        };
        let (key, value) = match key.split_once('=') {
            Some((key, value)) => (key, value),
            None => (key, rest.next().ok_or_else(|| format!("--{key} has no value"))?),
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
        named.insert(key.to_owned(), value);
    }
    let arguments = match (from_input, named.is_empty()) {
        (true, false) => return Err("arguments come from `-` or from --key, not both".to_owned()),
        (true, true) => ToolArguments::FromInput,
        (false, _) => ToolArguments::Named(named),
    };
    Ok(Some(ToolCommand { name, arguments, raw, deadline_ms }))
}

fn of_node(name: &str, arguments: Map<String, Value>) -> ToolCommand {
    let arguments = ToolArguments::Named(arguments);
    ToolCommand { name: name.to_owned(), arguments, raw: true, deadline_ms: None }
}

/// The text to print.
fn call(command: &ToolCommand) -> Result<String, String> {
    let arguments = match &command.arguments {
        ToolArguments::Named(named) => Value::Object(named.clone()),
        ToolArguments::FromInput => {
            let read = std::io::read_to_string(std::io::stdin());
            let text = read.map_err(|cause| format!("standard input: {cause}"))?;
            let value: Value =
                serde_json::from_str(&text).map_err(|cause| format!("standard input: {cause}"))?;
            if !value.is_object() {
                return Err("standard input is not a JSON object".to_owned());
            }
            value
        }
    };
    let request =
        json!({ "name": command.name, "deadline_ms": command.deadline_ms, "arguments": arguments });
    let answer = exchange(&request.to_string()).map_err(|cause| {
        format!("this session's channel for host tools does not work: {cause}")
    })?;
    let (first, body) = answer.split_first().ok_or("the worker is gone")?;
    let value: Value = serde_json::from_slice(body).map_err(|cause| cause.to_string())?;
    if *first != TOOL_SUCCESS {
        return Err(failure(&value));
    }
    match value {
        Value::String(text) if command.raw => Ok(text + "\n"),
        value if command.raw => Ok(format!("{value:#}\n")),
        value => Ok(format!("{value}\n")),
    }
}

fn failure(value: &Value) -> String {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let message = text("message").unwrap_or("the tool failed");
    match text("code").or_else(|| text("type")) {
        Some(code) => format!("{code}: {message}"),
        None => message.to_owned(),
    }
}

fn exchange(request: &str) -> std::io::Result<Vec<u8>> {
    let other = |text| std::io::Error::other(text);
    let number = std::env::var(CHANNEL_VARIABLE)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| other("WINDLASS_TOOL_FD is not set"))?;
    let channel: OwnedFd = take_inherited(number)?;
    let (mut own, worker) = UnixStream::pair()?;
    if !send_descriptor(&channel, &worker) {
        return Err(other("the channel is closed"));
    }
    drop(worker);
    own.write_all(request.as_bytes())?;
    own.write_all(&[0])?;
    let mut answer = Vec::new();
    own.read_to_end(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> String {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match parse(&words) {
            Ok(Some(ToolCommand { name, arguments, raw, deadline_ms })) => {
                format!("{name} {arguments:?} {raw} {deadline_ms:?}")
            }
            Ok(None) => "usage".to_owned(),
            Err(problem) => problem,
        }
    }

    #[test]
    fn command_lines_are_parsed() {
        for (line, expected) in [
            ("", "usage"),
            ("--help", "usage"),
            ("--list", "windlass.list Named({}) true None"),
            ("--help a.b", r#"windlass.describe Named({"name": String("a.b")}) true None"#),
            ("a.b --x 1 --y=two", r#"a.b Named({"x": Number(1), "y": String("two")}) false None"#),
            ("--raw --deadline-ms 5 a.b -", "a.b FromInput true Some(5)"),
            ("a.b - --x 1", "arguments come from `-` or from --key, not both"),
            ("a.b x", "\"x\" is not --key"),
            ("a.b --x", "--x has no value"),
            ("--odd a.b", "unknown option --odd"),
        ] {
            assert_eq!(parsed(line), expected, "{line}");
        }
    }
}
