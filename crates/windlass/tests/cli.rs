//! The command line against a real node, as scripts and people see it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use windlass_testkit::{TestNode, python};

/// Nobody listens at this port, which no program gets that asks for a free one.
const NOBODY: &str = "http://127.0.0.1:1";

/// Private directories. The commands start the node in them.
fn place() -> TestNode {
    TestNode::builder(env!("CARGO_BIN_EXE_windlass")).prepare().unwrap()
}

fn windlass(place: &TestNode, args: &[&str], input: &str) -> Output {
    windlass_with(place, args, input, &[])
}

fn windlass_with(place: &TestNode, args: &[&str], input: &str, env: &[(&str, &str)]) -> Output {
    let mut child = Command::new(place.program())
        .args(args)
        .env("WINDLASS_RUNTIME_DIR", &place.dirs().runtime)
        .env("WINDLASS_STATE_DIR", &place.dirs().state)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .envs(env.iter().copied())
        .current_dir(place.base())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input closes it first.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Runs `code` from a file, with `input` as its standard input.
fn run(place: &TestNode, code: &str, more: &[&str], input: &str) -> Output {
    let file = place.base().join("code.py");
    std::fs::write(&file, code).unwrap();
    let python = python();
    let mut args = vec!["run"];
    if !more.contains(&"--session") {
        args.extend(["--python", python.to_str().unwrap()]);
    }
    args.extend(more);
    args.push(file.to_str().unwrap());
    windlass(place, &args, input)
}

#[track_caller]
fn check(output: &Output, code: i32, stdout: &str, stderr_holds: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), stdout, "{stderr}");
    assert!(stderr.contains(stderr_holds), "{stderr}");
}

#[test]
fn read_only_commands_start_no_node() {
    let place = place();
    check(&windlass(&place, &["status"], ""), 3, "no node is running\n", "");
    check(&windlass(&place, &["status", "--json"], ""), 3, "null\n", "");
    check(&windlass(&place, &["down"], ""), 0, "no node is running\n", "");
    check(&windlass(&place, &["ps", "--json"], ""), 0, "{\n  \"sessions\": []\n}\n", "");
    assert!(!place.dirs().socket().exists());
}

#[test]
fn run_starts_the_node_and_shows_result_error_and_answers() {
    let place = place();
    check(&run(&place, "print('a')\n1 + 1", &[], ""), 0, "a\n", "");
    check(&run(&place, "print('a')\n1 / 0", &[], ""), 1, "a\n", "ZeroDivisionError");
    check(&run(&place, "print('got', input('name? '))", &[], "bob\n"), 0, "got bob\n", "name? ");
    check(&run(&place, "input()", &[], ""), 1, "", "EOFError");
    let python = python();
    let from_stdin = ["run", "--python", python.to_str().unwrap(), "-"];
    check(&windlass(&place, &from_stdin, "40 + 2"), 0, "42\n", "");
    let left = windlass(&place, &["ps", "--json"], "");
    check(&left, 0, "{\n  \"sessions\": []\n}\n", "");
}

#[test]
fn a_deadline_ends_the_command_with_its_own_exit_code() {
    let place = place();
    let late = run(&place, "import time\ntime.sleep(60)", &["--deadline", "200ms"], "");
    check(&late, 124, "", "deadline");
}

#[test]
fn a_loss_names_the_command_that_shows_the_output() {
    let place = place();
    let code = "print('before', flush=True)\nimport os; os.kill(os.getpid(), 9)";
    let lost = run(&place, code, &[], "");
    let said = String::from_utf8_lossy(&lost.stderr);
    assert!(said.contains("output so far: windlass logs ") && !said.contains("/v1/"), "{said}");
}

#[test]
fn a_kept_session_continues_in_the_next_command() {
    let place = place();
    check(&run(&place, "x = 5", &["--keep"], ""), 0, "", "stays");
    let listed = windlass(&place, &["ps", "--json"], "");
    let list: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let session = list["sessions"][0]["id"].as_str().unwrap().to_owned();
    check(&run(&place, "print(x + 1)", &["--session", &session], ""), 0, "6\n", "");
    let typed = "def f():\n    return x\n\nf()\nx = input('new? ')\nseven\nx\n";
    let repl = windlass(&place, &["repl", "--session", &session], typed);
    check(&repl, 0, "5\n'seven'\n", "stays");
    let logs = windlass(&place, &["logs", &session], "");
    check(&logs, 0, "6\n5\n'seven'\n", "");
    let closed = format!("session {session} is closed\n");
    // The session is ended although another one is unknown.
    check(
        &windlass(&place, &["kill", "nope", &session], ""),
        1,
        &closed,
        "there is no session nope",
    );
    let ended = run(&place, "x", &["--session", &session], "");
    check(&ended, 1, "", "code: session_ended\nhelp: ");
}

#[test]
fn large_output_is_complete() {
    let place = place();
    let output = run(&place, "for i in range(300000):\n    print(i, 'x' * 9)", &[], "");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let whole = text.lines().enumerate().all(|(at, line)| line == format!("{at} xxxxxxxxx"));
    assert!(whole && text.lines().count() == 300_000, "{} lines", text.lines().count());
}

#[test]
fn up_and_down_start_and_stop_the_node() {
    let place = place();
    let up = windlass(&place, &["up"], "");
    assert_eq!(up.status.code(), Some(0), "{}", String::from_utf8_lossy(&up.stderr));
    assert_eq!(windlass(&place, &["status"], "").status.code(), Some(0));
    check(&windlass(&place, &["down"], ""), 0, "the node is down\n", "");
    assert_eq!(windlass(&place, &["status"], "").status.code(), Some(3));
    check(&run(&place, "print(1)", &["--keep"], ""), 0, "1\n", "stays");
    let told = "the node is down; 1 session ended with it\n";
    check(&windlass(&place, &["down"], ""), 0, told, "");
}

#[test]
fn help_and_a_command_print_what_its_option_help_prints() {
    let place = place();
    for command in [&["run"][..], &["status"], &["policy", "explain"], &["token", "create"]] {
        let by_word = windlass(&place, &[&["help"], command].concat(), "");
        let by_option = windlass(&place, &[command, &["--help"]].concat(), "");
        assert!(by_option.status.success() && by_option.stdout.len() > 50, "{by_option:?}");
        check(&by_word, 0, &String::from_utf8(by_option.stdout).unwrap(), "");
    }
}

#[test]
fn a_url_without_a_node_is_an_error_of_every_command_and_never_an_empty_list() {
    let place = place();
    let token = "ab".repeat(32);
    let commands = "ps;ps --json;ps --all;status;status --json;status --socket;du;prune --dry-run;servers;\
                    environments;workers;down;up;egress s;logs s;kill s;interrupt s;attach s;fork s;run -;\
                    repl;secret list;tools s;mcp --no-start";
    for (url, commands) in [(NOBODY, commands), ("http://nowhere.invalid:8040", "ps")] {
        for command in commands.split(';') {
            let args: Vec<&str> = command.split(' ').collect();
            let env = [("WINDLASS_URL", url), ("WINDLASS_TOKEN", &*token)];
            let output = windlass_with(&place, &args, "1", &env);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{command} at {url}: {stderr}");
            assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{command} at {url}");
            let told = stderr.contains("code: unreachable\nhelp: check WINDLASS_URL");
            assert!(told, "{command} at {url}: {stderr}");
        }
    }
    assert!(!place.dirs().socket().exists());
}

#[test]
fn a_url_that_cannot_be_used_is_told_before_its_token() {
    let place = place();
    let token = place.dirs().token().display().to_string();
    let listens = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listens = (format!("http://{}", listens.local_addr().unwrap()), listens);
    for (url, code, told) in [
        ("nonsense", "bad_url", "not a plain URL"),
        (NOBODY, "unreachable", "no node answers at"),
        (&*listens.0, "bad_token", &*token),
    ] {
        let output = windlass_with(&place, &["ps"], "", &[("WINDLASS_URL", url)]);
        check(&output, 1, "", &format!("code: {code}"));
        assert!(String::from_utf8_lossy(&output.stderr).contains(told), "{output:?}");
    }
    // An empty variable counts as unset.
    let output = windlass_with(&place, &["status"], "", &[("WINDLASS_URL", "")]);
    check(&output, 3, "no node is running\n", "");
}

#[test]
fn the_file_of_authorities_is_checked_for_https_only() {
    let place = place();
    let token = "ab".repeat(32);
    for (scheme, code) in [("https", "bad_ca"), ("http", "unreachable")] {
        let url = NOBODY.replace("http", scheme);
        let env =
            [("WINDLASS_URL", &*url), ("WINDLASS_TOKEN", &*token), ("WINDLASS_CA", "/missing.pem")];
        let output = windlass_with(&place, &["ps"], "", &env);
        check(&output, 1, "", &format!("code: {code}"));
        let names_file = String::from_utf8_lossy(&output.stderr).contains("/missing.pem");
        assert_eq!(names_file, scheme == "https", "{output:?}");
    }
}

#[test]
fn a_person_is_told_of_wrong_arguments_and_not_of_the_http_api() {
    let place = place();
    let missing = run(&place, "print(1)", &["--writable", "/nowhere/out"], "");
    check(&missing, 0, "1\n", "--writable /nowhere/out: there is no such directory");
    for args in [&["env", "show", "nope"][..], &["run", "--worker", "nope", "-c", "1"]] {
        let output = windlass(&place, args, "");
        check(&output, 1, "", "\"nope\"");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("openapi"), "{output:?}");
    }
    std::fs::write(place.base().join("table.py"), b"\xff\0").unwrap();
    check(
        &windlass(&place, &["run", "table.py"], ""),
        1,
        "",
        "table.py is not a text file in UTF-8",
    );
}

#[test]
fn a_node_that_does_not_start_shows_only_its_own_log() {
    let place = place();
    assert!(windlass(&place, &["up"], "").status.success());
    assert!(windlass(&place, &["down"], "").status.success());
    let output = windlass_with(&place, &["up"], "", &[("WINDLASS_LOG", "inof")]);
    check(&output, 1, "", "\"inof\" is no level");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("the node serves"), "{output:?}");
}

#[test]
fn a_large_standard_input_is_read_in_blocks_and_questions_are_still_shown() {
    let place = place();
    let lines: String = (0..20_000).map(|line| format!("{line}\n")).collect();
    let sum = "import sys; print(sum(int(line) for line in sys.stdin))";
    check(&run(&place, sum, &[], &lines), 0, "199990000\n", "");
    let asks = "print([input('a? '), input('b? ')])";
    check(&run(&place, asks, &[], "1\n2\n"), 0, "['1', '2']\n", "b? ");
}

#[test]
fn status_tells_the_socket() {
    let place = place();
    check(&windlass(&place, &["status", "--socket"], ""), 3, "", "no node is running");
    assert!(windlass(&place, &["up"], "").status.success());
    let socket = place.dirs().socket().display().to_string();
    check(&windlass(&place, &["status", "--socket"], ""), 0, &format!("{socket}\n"), "");
    let status = windlass(&place, &["status", "--json"], "");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["socket"], socket);
    let shown = String::from_utf8(windlass(&place, &["status"], "").stdout).unwrap();
    assert!(shown.lines().any(|line| line == format!("{:12} {socket}", "socket")), "{shown}");
}

#[test]
fn a_token_allows_what_its_scope_says_until_it_is_removed() {
    let place = place();
    assert!(windlass(&place, &["up", "--listen", "127.0.0.1:0"], "").status.success());
    let status = windlass(&place, &["status", "--json"], "");
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let url = format!("http://{}", status["listen"].as_str().unwrap());
    let create = |name: &str, scope: &str| {
        let made = windlass(&place, &["token", "create", name, "--scope", scope], "");
        assert!(made.status.success(), "{made:?}");
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let (read, run, admin) = (create("r", "read"), create("x", "run"), create("a", "admin"));
    let own = String::from_utf8(windlass(&place, &["token"], "").stdout).unwrap();
    let by = |token: &str, command: &str| {
        let args: Vec<&str> = command.split(' ').collect();
        let env = [("WINDLASS_URL", &*url), ("WINDLASS_TOKEN", token.trim())];
        windlass_with(&place, &args, "6 * 7", &env)
    };
    for (command, readers, runners) in [
        ("ps", true, true),
        ("status", true, true),
        ("du", true, true),
        ("run -", false, true),
        ("secret list", false, false),
        ("prune", false, false),
    ] {
        for (token, allowed) in [(&read, readers), (&run, runners), (&admin, true), (&own, true)] {
            let output = by(token, command);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), allowed, "{command}: {stderr}");
            assert!(allowed || stderr.contains("code: forbidden\nhelp: use a token"), "{stderr}");
        }
    }
    let metrics = |token: &str| {
        let address = url.strip_prefix("http://").unwrap();
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let request = format!(
            "GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    let answer = metrics(&read);
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("windlass_sessions"),
        "{answer}"
    );

    let listed = windlass(&place, &["token", "list", "--json"], "");
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let names: Vec<_> =
        listed["tokens"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["r", "x", "a"]);
    let exists = windlass(&place, &["token", "create", "r", "--scope", "admin"], "");
    check(&exists, 1, "", "code: token_exists\nhelp: ");
    check(&windlass(&place, &["token", "rm", "r"], ""), 0, "token r is removed\n", "");
    assert!(metrics(&read).starts_with("HTTP/1.1 401 "));
    assert_eq!(by(&run, "ps").status.code(), Some(0));
    // Nobody finds the tokens in the files of the node.
    let file = std::fs::read_to_string(place.dirs().named_tokens()).unwrap();
    assert!(!file.contains(&run) && !file.contains(&admin), "{file}");
}

#[test]
fn tokens_are_not_made_here_for_a_node_elsewhere() {
    let place = place();
    let env = [("WINDLASS_URL", NOBODY)];
    for line in ["token list", "token create ci --scope read", "token rm ci"] {
        let args: Vec<&str> = line.split(' ').collect();
        let refused = windlass_with(&place, &args, "", &env);
        check(&refused, 1, "", "code: local_only\nhelp: run it on the node's machine");
    }
    assert!(!place.dirs().named_tokens().exists());
}

#[test]
fn a_run_without_code_or_with_an_empty_file_is_told_what_to_give() {
    let place = place();
    check(&windlass(&place, &["run"], ""), 2, "", "(FILE | - | -c CODE) [ARGS]...");
    check(&windlass(&place, &["run", ""], ""), 1, "", "FILE is empty");
    assert!(!place.dirs().socket().exists());
}

#[test]
fn a_bridge_that_may_not_start_a_node_fails_without_one() {
    let place = place();
    check(&windlass(&place, &["mcp", "--no-start"], ""), 3, "", "code: unreachable\nhelp: ");
    assert!(!place.dirs().socket().exists());
}
