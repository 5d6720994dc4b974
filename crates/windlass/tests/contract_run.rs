//! Line 75 of the contract: `run FILE ARGS` behaves as the interpreter would. And what replies say about a
//! turn's exit, value and streams.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use windlass_client::Client;
use windlass_client::protocol::api::{CreateSession, Session, SubmitTurn, Turn, TurnQuery};
use windlass_client::protocol::limits::TURN_CONTEXT_BYTES_MAX;
use windlass_client::protocol::turn::TurnContext;
use windlass_client::protocol::{ErrorCode, Outcome, SessionId};
use windlass_testkit::{
    Gate, PATIENCE, TestNode, named_turn, outside_of_tmp, python, run, run_ok, turn, turn_ended,
    within,
};

/// Uses all that a program gets from its interpreter, and ends with an error, threads and exit functions.
const PROGRAM: &str = "\
import atexit, os, sys, threading
import beside
atexit.register(print, 'first registered, last run')
@atexit.register
def fails():
    print('exits')
def work():
    gate.wait()
    print('the thread ends', flush=True)
gate = threading.Event()
threading.Thread(target=work).start()
print(sys.argv[1:], os.path.basename(__file__), __name__, beside.NAME, flush=True)
sys.stderr.write('to standard error\\n')
'this value is not shown'
gate.set()
def broken():
    raise LookupError('the end')
broken()
";

fn place() -> TestNode {
    TestNode::builder(env!("CARGO_BIN_EXE_windlass")).prepare().unwrap()
}

async fn started() -> (TestNode, Client) {
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let client = node.client().await.unwrap();
    (node, client)
}

fn output(command: &mut Command) -> Output {
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").stdin(Stdio::null()).output().unwrap()
}

/// `windlass run OPTIONS --python P WORDS`, in a directory of its own.
fn windlass_run(place: &TestNode, directory: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(place.program());
    command.arg("run").args(words).current_dir(directory);
    command.env("WINDLASS_RUNTIME_DIR", &place.dirs().runtime);
    output(command.env("WINDLASS_STATE_DIR", &place.dirs().state))
}

fn project(place: &TestNode) -> std::path::PathBuf {
    let directory = place.base().join("project");
    std::fs::create_dir_all(directory.join("sub")).unwrap();
    std::fs::write(directory.join("sub/job.py"), PROGRAM).unwrap();
    std::fs::write(directory.join("sub/beside.py"), "NAME = 'beside'").unwrap();
    directory
}

#[track_caller]
fn check(ran: &Output, code: i32, stdout: &str, stderr_holds: &str) {
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(code), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), stdout, "{stderr}");
    assert!(stderr.contains(stderr_holds), "{stderr}");
}

#[test]
fn contract_75_a_file_behaves_as_its_interpreter_runs_it() {
    let place = place();
    let directory = project(&place);
    let python = python();
    let python = python.to_str().unwrap();
    let path = directory.join("sub/job.py");
    let path = path.to_str().unwrap();
    let words = ["--deadline", "--python", "x y", "-c", "", "-"];
    let real = output(Command::new(python).arg(path).args(words).current_dir(&directory));
    let ran = windlass_run(&place, &directory, &[&["--python", python, path][..], &words].concat());
    let lines = |output: &[u8]| String::from_utf8_lossy(output).into_owned();
    assert_eq!(lines(&ran.stdout), lines(&real.stdout), "{ran:?}");
    assert_eq!(lines(&ran.stderr), lines(&real.stderr));
    assert_eq!((ran.status.code(), real.status.code()), (Some(1), Some(1)));
    assert!(lines(&ran.stdout).ends_with("exits\nfirst registered, last run\n"), "{ran:?}");

    // A relative path leads to the same file.
    let relative = windlass_run(&place, &directory, &["--python", python, "sub/job.py", "a"]);
    assert!(lines(&relative.stdout).starts_with("['a'] job.py __main__ beside\n"), "{relative:?}");
    assert!(lines(&relative.stderr).contains(path), "{relative:?}");
}

#[test]
fn contract_75_the_exit_code_is_that_of_the_code() {
    let place = place();
    let directory = project(&place);
    let python = python();
    let python = python.to_str().unwrap();
    let exits = directory.join("exits.py");
    let of_file = |code: &str| {
        std::fs::write(&exits, code).unwrap();
        windlass_run(&place, &directory, &["--python", python, exits.to_str().unwrap()])
    };
    for (code, status, stderr) in [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('the reason')", 1, "the reason\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("x = = 1", 1, "SyntaxError"),
        ("import os; os._exit(9)", 9, "exit status 9"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139, "SIGSEGV"),
    ] {
        check(&of_file(code), status, "", stderr);
    }
    let of_code = |code: &str, more: &[&str]| {
        windlass_run(&place, &directory, &[&["-c", code, "--python", python][..], more].concat())
    };
    check(&of_code("import sys; sys.exit(3)", &[]), 3, "", "");
    check(&of_code("import sys; sys.exit('the reason')", &[]), 1, "", "the reason\n");
    // The value of code that is no file is shown.
    let argv = "import sys; sys.argv";
    check(&of_code(argv, &["a", "--b"]), 0, "['-c', 'a', '--b']\n", "");
    check(&of_code(argv, &["--", "-b"]), 0, "['-c', '-b']\n", "");
    check(&of_code("1 + 1", &[]), 0, "2\n", "");
}

#[test]
fn contract_75_arguments_that_a_worker_does_not_take_are_an_error() {
    let place = place();
    let directory = project(&place);
    std::fs::write(directory.join("job.py"), "print(1)").unwrap();
    let words = ["--worker", "pyodide", "job.py", "--deadline", "5m"];
    let refused = windlass_run(&place, &directory, &words);
    check(&refused, 1, "", "the worker pyodide gives code no arguments");
}

fn program(code: &str, args: &[&str]) -> SubmitTurn {
    let context = TurnContext {
        file: Some("/srv/jobs/one.py".to_owned()),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
        program: true,
        ..TurnContext::default()
    };
    SubmitTurn { context: Some(Box::new(context)), ..turn(code) }
}

#[tokio::test]
async fn contract_75_a_program_that_waits_keeps_its_arguments_over_a_killed_node() {
    let (mut node, client) = started().await;
    let session = node.session(&client).await.unwrap();
    let gate = Gate::new("first").unwrap();
    client.submit_turn(&session.id, &named_turn("first", gate.python())).await.unwrap();
    let first = within(PATIENCE, gate.reached()).await.unwrap();
    let waiting = program("import sys; print(sys.argv, __file__)", &["a", "--b"]);
    // Its code comes in several events, and the arguments in the first of them.
    let code = format!("{}\n{}", waiting.code, "#".repeat(600_000));
    let waiting = SubmitTurn { code, ..waiting };
    let waiting = client.submit_turn(&session.id, &waiting).await.unwrap().id;
    node.kill9();
    node.restart().await.unwrap();
    let client = node.client().await.unwrap();
    first.open().await.unwrap();
    let ended = turn_ended(&client, &session.id, &waiting, PATIENCE).await.unwrap();
    let printed = "['/srv/jobs/one.py', 'a', '--b'] /srv/jobs/one.py\n";
    assert_eq!((ended.outcome, ended.output.text.as_str()), (Some(Outcome::Ok), printed));
}

async fn ran(client: &Client, session: &SessionId, submit: SubmitTurn) -> Turn {
    within(PATIENCE, client.run_turn(session, submit)).await.unwrap()
}

#[tokio::test]
async fn contract_75_directory_variables_and_name_are_those_of_one_turn() {
    let (node, client) = started().await;
    let session = node.session(&client).await.unwrap();
    let sub = Path::new(&session.workspace).join("sub");
    std::fs::create_dir(&sub).unwrap();
    let look = "import os; print(os.getcwd(), os.environ.get('ONLY_HERE')); 1 / 0";
    let context = TurnContext {
        file: Some("/notes/cell.py".to_owned()),
        cwd: Some(sub.to_str().unwrap().to_owned()),
        env: BTreeMap::from([("ONLY_HERE".to_owned(), "yes".to_owned())]),
        ..TurnContext::default()
    };
    let within_context = SubmitTurn { context: Some(Box::new(context)), ..turn(look) };
    let there = ran(&client, &session.id, within_context).await.output.text;
    assert!(there.starts_with(&format!("{} yes\n", sub.display())), "{there}");
    assert!(there.contains("File \"/notes/cell.py\", line 1"), "{there}");
    let after = run(&client, &session.id, look).await.output.text;
    assert!(after.starts_with(&format!("{} None\n", session.workspace)), "{after}");

    for (context, code) in [
        (json!({"args": ["x".repeat(TURN_CONTEXT_BYTES_MAX)]}), ErrorCode::MessageTooLarge),
        (json!({"env": {"A=B": "1"}}), ErrorCode::BadRequest),
        (json!({"args": ["a\0b"]}), ErrorCode::BadRequest),
    ] {
        let context = serde_json::from_value(context).unwrap();
        let submit = SubmitTurn { context: Some(context), ..turn("1") };
        let refused = client.submit_turn(&session.id, &submit).await.unwrap_err();
        assert_eq!(refused.api_code(), Some(code));
    }
    run_ok(&client, &session.id, "1").await;
}

/// A session of a worker that takes no context, with a first turn that waits for the worker.
async fn perl_with_first(client: &Client, first: SubmitTurn) -> (Session, Turn) {
    let create = CreateSession {
        worker: Some("tiny".to_owned()),
        turn: Some(first),
        ..CreateSession::default()
    };
    let created = within(PATIENCE, client.create_session(&create)).await.unwrap();
    (created.session, created.turn.unwrap())
}

#[tokio::test]
async fn contract_75_a_context_that_the_worker_does_not_take_is_refused_by_name() {
    if !Path::new("/usr/bin/perl").exists() {
        return windlass_testkit::skip("there is no /usr/bin/perl");
    }
    let place = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let worker = place.path().join("worker.pl");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workers/tiny/worker.pl");
    std::fs::copy(source, &worker).unwrap();
    let command = json!(["/usr/bin/perl", worker]);
    let node = TestNode::builder(env!("CARGO_BIN_EXE_windlass"));
    let node = node.config(format!("[workers.tiny]\ncommand = {command}\n")).start().await.unwrap();
    let client = node.client().await.unwrap();
    let (session, first) = perl_with_first(&client, program("print 'ran'", &["a"])).await;
    // The worker was not ready, so the turn was accepted. It never ran.
    let ended = turn_ended(&client, &session.id, &first.id, PATIENCE).await.unwrap();
    let error = ended.error.unwrap();
    assert_eq!((ended.outcome, error.code), (Some(Outcome::Error), Some(ErrorCode::BadRequest)));
    assert!(error.message.contains("takes no context"), "{}", error.message);
    assert_eq!(ended.output.bytes, 0);
    let refused = client.submit_turn(&session.id, &program("print 'ran'", &[])).await.unwrap_err();
    assert_eq!(refused.api_code(), Some(ErrorCode::BadRequest));
    let goes_on = run_ok(&client, &session.id, "print \"goes on\\n\"; ()").await;
    assert!(goes_on.starts_with("goes on\n"), "{goes_on}");
}

/// A turn of this kind has the directory `sub`, a variable and the argument `a`; the next one has none of them.
async fn surroundings_of_one_turn(worker: &str, interpreter: Option<String>, look: &str) {
    let (_node, client) = started().await;
    let worker = Some(worker.to_owned());
    let create = CreateSession { worker, interpreter, ..CreateSession::default() };
    let session = within(PATIENCE, client.create_session(&create)).await.unwrap().session;
    let sub = Path::new(&session.workspace).join("sub");
    std::fs::create_dir(&sub).unwrap();
    let in_context = |context: Value| {
        let context = serde_json::from_value(context).unwrap();
        SubmitTurn { context: Some(context), ..turn(look) }
    };
    let context = json!({"cwd": sub, "env": {"ONLY_HERE": "yes"}, "args": ["a"]});
    let there = ran(&client, &session.id, in_context(context)).await;
    assert_eq!((there.output.text.as_str(), there.exit_code), ("<sub yes a>\n", Some(0)));
    let name = Path::new(&session.workspace).file_name().unwrap().to_str().unwrap();
    let after = format!("<{name}  >\n");
    assert_eq!(run_ok(&client, &session.id, look).await, after);
    let refused = ran(&client, &session.id, in_context(json!({"cwd": "/nowhere"}))).await;
    assert_eq!((refused.outcome, refused.exit_code), (Some(Outcome::Error), Some(1)));
    assert!(!refused.output.text.contains('<'), "{refused:?}");
    assert_eq!(run_ok(&client, &session.id, look).await, after);
}

#[tokio::test]
async fn contract_75_r_has_directory_variables_and_arguments_for_one_turn() {
    if !Path::new("/usr/bin/R").exists() {
        return windlass_testkit::skip("there is no /usr/bin/R");
    }
    let look = "cat(sprintf('<%s %s %s>\\n', basename(getwd()), Sys.getenv('ONLY_HERE'), \
                paste(commandArgs(TRUE), collapse = ',')))";
    surroundings_of_one_turn("r", None, look).await;
}

#[tokio::test]
async fn contract_75_node_has_directory_variables_and_arguments_for_one_turn() {
    let Ok(node) = std::env::var("WINDLASS_TEST_NODE") else {
        return windlass_testkit::skip("WINDLASS_TEST_NODE is not set");
    };
    let look = "console.log(`<${path.basename(process.cwd())} ${process.env.ONLY_HERE ?? ''} \
                ${process.argv.slice(1)}>`)";
    surroundings_of_one_turn("node", Some(node), look).await;
}

#[tokio::test]
async fn contract_75_bash_has_directory_variables_and_arguments_for_one_turn() {
    let (_node, client) = started().await;
    let create = CreateSession { worker: Some("shell".to_owned()), ..CreateSession::default() };
    let session = client.create_session(&create).await.unwrap().session;
    let sub = Path::new(&session.workspace).join("it's");
    std::fs::create_dir(&sub).unwrap();
    let look = "echo \"${PWD##*/} ${ONLY_HERE-none} $LANGUAGE $# $1\"";
    run_ok(&client, &session.id, "set -- own; export LANGUAGE=before; set -e").await;
    let context = TurnContext {
        cwd: Some(sub.to_str().unwrap().to_owned()),
        args: vec!["a'b".to_owned(), "c".to_owned()],
        env: BTreeMap::from(
            [("ONLY_HERE", "y\n'"), ("LANGUAGE", "now")]
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
        ),
        ..TurnContext::default()
    };
    let submit = SubmitTurn { context: Some(Box::new(context)), ..turn(look) };
    let there = ran(&client, &session.id, submit).await;
    assert_eq!(there.output.text, "it's y\n' now 2 a'b\n", "{there:?}");
    let name = Path::new(&session.workspace).file_name().unwrap().to_str().unwrap();
    let after = run_ok(&client, &session.id, look).await;
    assert_eq!(after, format!("{name} none before 1 own\n"));

    for (context, message) in [
        (json!({"env": {"A-B": "1"}}), "cannot set the variable \"A-B\""),
        (json!({"cwd": "/nowhere"}), "exit status 1"),
    ] {
        let context = serde_json::from_value(context).unwrap();
        let submit = SubmitTurn { context: Some(context), ..turn("echo no") };
        let refused = ran(&client, &session.id, submit).await;
        assert_eq!(refused.outcome, Some(Outcome::Error), "{refused:?}");
        assert!(refused.error.as_ref().unwrap().message.contains(message), "{refused:?}");
        assert!(!refused.output.text.contains("no\n"), "{refused:?}");
    }
    assert_eq!(run_ok(&client, &session.id, look).await, format!("{name} none before 1 own\n"));
    let exits = run(&client, &session.id, "set +e; (exit 4)").await;
    assert_eq!(exits.exit_code, Some(4), "{exits:?}");
}

#[tokio::test]
async fn the_value_of_a_turn_comes_as_json_if_it_is_small_and_plain() {
    let (node, client) = started().await;
    let session = node.session(&client).await.unwrap().id;
    for (code, value) in [
        (
            "{'a': [1, 2.5, None, True], 'b': (0.1 + 0.2,)}",
            Some(json!({"a": [1, 2.5, null, true], "b": [0.1 + 0.2]})),
        ),
        ("None", Some(Value::Null)),
        ("2 ** 64 - 1", Some(json!(u64::MAX))),
        ("2 ** 64", None),
        ("'x' * 20_000", None),
        ("x = 1", None),
    ] {
        let first = run(&client, &session, code).await;
        let again = client.turn(&session, &first.id, TurnQuery::default()).await.unwrap();
        for turn in [first, again] {
            assert_eq!(turn.value.map(|value| value.0), value, "{code}");
            assert_eq!(turn.exit_code, Some(0), "{code}");
        }
    }
}

#[tokio::test]
async fn standard_output_and_standard_error_are_shown_apart_within_their_budgets() {
    let (node, client) = started().await;
    let session = node.session(&client).await.unwrap().id;
    let code = "import sys\n\
                for n in range(1000):\n\
                \x20   print(f'out {n}', flush=True)\n\
                \x20   print(f'err {n}', file=sys.stderr, flush=True)\n\
                1 / 0";
    let asked = SubmitTurn {
        output_bytes_max: Some(100),
        stdout_bytes_max: Some(100_000),
        stderr_bytes_max: Some(1000),
        ..turn(code)
    };
    let turn = ran(&client, &session, asked).await;
    let lines: String = (0..1000).map(|n| format!("out {n}\n")).collect();
    let stdout = turn.stdout.unwrap();
    assert_eq!((stdout.text.as_str(), stdout.omitted_bytes), (lines.as_str(), 0));
    let stderr = turn.stderr.unwrap();
    assert!(stderr.text.starts_with("err 0\nerr 1\n"), "{}", stderr.text);
    assert!(stderr.text.ends_with("ZeroDivisionError: division by zero\n"), "{}", stderr.text);
    assert!(stderr.text.len() <= 1000 && stderr.omitted_bytes > 0, "{}", stderr.text);
    assert_eq!(turn.output.bytes, stdout.bytes + stderr.bytes);
    let later = TurnQuery { stdout_bytes_max: Some(10), ..TurnQuery::default() };
    let later = client.turn(&session, &turn.id, later).await.unwrap();
    assert_eq!(later.stdout.unwrap().bytes, stdout.bytes);
    assert!(later.stderr.is_none());
}

#[tokio::test]
async fn a_turn_that_its_worker_does_not_survive_names_the_cause_and_shows_the_last_words() {
    let (node, client) = started().await;
    let session = node.session(&client).await.unwrap().id;
    let words = "import os, signal, sys; print('last words', file=sys.stderr, flush=True); ";
    for (ends, cause, status) in [
        ("os._exit(3)", "exit status 3", 3),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV", 139),
        ("os.abort()", "SIGABRT", 134),
    ] {
        let turn = run(&client, &session, &format!("{words}{ends}")).await;
        let error = turn.error.unwrap();
        assert_eq!((turn.outcome, turn.exit_code), (Some(Outcome::Lost), Some(status)));
        assert_eq!(error.code, Some(ErrorCode::WorkerDied));
        let has_all = error.message.contains(cause) && error.message.contains("last words");
        assert!(has_all, "{}", error.message);
    }
}
