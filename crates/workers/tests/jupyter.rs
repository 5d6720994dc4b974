//! The Jupyter worker with real kernels, and with a kernel that misbehaves. The test is the keeper.
//!
//! A test looks for its kernel: Python with ipykernel as WINDLASS_TEST_JUPYTER_PYTHON or `python3`, deno as
//! WINDLASS_TEST_DENO or `deno`, R with IRkernel as `R`. Without it, the test is skipped.

mod kernel_keeper;

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use kernel_keeper::{KernelKeeper, PATIENCE, STARTING, text_of};

fn python() -> Option<String> {
    let named = std::env::var("WINDLASS_TEST_JUPYTER_PYTHON").unwrap_or("python3".to_owned());
    let found = Command::new(&named).args(["-c", "import ipykernel, zmq"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(named);
    }
    println!("skipped: {named} has no ipykernel");
    None
}

fn ipykernel() -> Option<KernelKeeper> {
    let argv = json!([python()?, "-m", "ipykernel_launcher", "-f", "{connection_file}"]);
    Some(KernelKeeper::start(&json!({"argv": argv, "language": "python"})))
}

fn fake_kernel(transport: &str) -> Option<KernelKeeper> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_kernel.py");
    let argv = json!([python()?, script, "{connection_file}"]);
    let metadata = json!({"windlass": {"transport": transport}});
    Some(KernelKeeper::start(&json!({"argv": argv, "language": "fake", "metadata": metadata})))
}

#[test]
fn a_python_kernel_runs_turns() {
    let Some(mut keeper) = ipykernel() else { return };
    let name = keeper.ready["worker"].as_str().unwrap().to_owned();
    assert!(name.starts_with("ipykernel ") && name.contains("(python 3."), "{name}");
    assert_eq!(keeper.result("x = 20; x + 1"), "21\n");
    assert_eq!(keeper.result("x"), "20\n");
    let (frames, idle) = keeper.run("print('before'); 1/0");
    assert_eq!(text_of(&frames, "stdout"), "before\n");
    assert!(text_of(&frames, "traceback").contains("ZeroDivisionError: division by zero"));
    assert!(!text_of(&frames, "traceback").contains('\u{1b}'));
    assert_eq!(idle["error"], json!({"name": "ZeroDivisionError", "message": "division by zero"}));
    for code in ["exit()", "import sys; sys.exit(3)", "quit"] {
        keeper.run(code);
        assert_eq!(keeper.result("x"), "20\n", "{code}");
    }
    let (frames, _) = keeper.run("print?");
    assert!(text_of(&frames, "stdout").contains("Docstring"));
    keeper.shut_down();
}

#[test]
fn printed_text_and_bytes_of_descriptors_keep_their_order() {
    let Some(mut keeper) = ipykernel() else { return };
    let code = "import os, subprocess\nfor i in range(20):\n    print('a', i)\n    \
        os.write(1, b'b %d\\n' % i)\n    subprocess.run(['echo', 'c'])";
    let expected: String = (0..20).map(|i| format!("a {i}\nb {i}\nc\n")).collect();
    for _ in 0..3 {
        let (frames, _) = keeper.run(code);
        assert_eq!(text_of(&frames, "stdout"), expected);
    }
    let mut raw = String::new();
    let mut output = keeper.worker.stdout.take().unwrap();
    keeper.shut_down();
    output.read_to_string(&mut raw).unwrap();
    assert_eq!(raw, "", "nothing is shown twice");
}

#[test]
fn a_thread_of_an_earlier_turn_prints_in_the_background() {
    let Some(mut keeper) = ipykernel() else { return };
    keeper.run(
        "import threading\ngo, done = threading.Event(), threading.Event()\n\
         def late():\n    go.wait(); print('late', flush=True); done.set()\n\
         threading.Thread(target=late).start()",
    );
    let (frames, _) = keeper.run("go.set(); done.wait(); print('now')");
    assert_eq!(text_of(&frames, "stdout"), "now\n");
    let late = frames.iter().find(|frame| frame.header["background"] == json!(true)).unwrap();
    assert_eq!((late.header["turn"].as_u64(), late.body.as_slice()), (Some(1), &b"late\n"[..]));
    keeper.shut_down();
}

#[test]
fn displays_have_one_form_and_can_be_replaced() {
    let Some(mut keeper) = ipykernel() else { return };
    let (frames, idle) = keeper.run(
        "from IPython.display import *\n\
         handle = display(HTML('<b>1</b>'), display_id='mine'); handle.update(HTML('<b>2</b>'))\n\
         display(HTML('<i>3</i>')); clear_output(); display(HTML('<i>4</i>')); display(5)\n\
         display({'application/json': [1]}, raw=True); Image(b'\\x89PNG', format='png')",
    );
    assert_eq!(idle["outcome"], "ok");
    let shown: Vec<_> = frames
        .iter()
        .filter(|frame| frame.header["kind"] == "display")
        .map(|frame| {
            let header = &frame.header;
            let update = header["update"] == json!(true);
            (header["mime"].as_str().unwrap(), header["id"].as_str(), update, &frame.body[..])
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("text/html", Some("mine"), false, &b"<b>1</b>"[..]),
            ("text/html", Some("mine"), true, b"<b>2</b>"),
            ("text/html", Some("display-1"), false, b"<i>3</i>"),
            ("text/html", Some("display-1"), true, b"<i>4</i>"),
            ("application/json", Some("display-2"), false, b"[1]"),
            ("image/png", None, false, b"\x89PNG"),
        ]
    );
    assert_eq!(text_of(&frames, "stdout"), "5\n");
    keeper.shut_down();
}

#[test]
fn input_is_asked_for_line_by_line() {
    let Some(mut keeper) = ipykernel() else { return };
    keeper.begin("import getpass\nprint('first')\na = input('name? '); b = input(); c = getpass.getpass('word? ')\n(a, b, c)");
    let printed = keeper.receive().unwrap();
    assert_eq!(printed.body, b"first\n");
    let asked = keeper.receive().unwrap().header;
    assert_eq!(asked["prompt"], "name? ");
    assert_ne!(asked["secret"], true);
    keeper.send(&json!({"kind": "turn_input", "turn": 1, "more": true}), b"ada\nlo");
    keeper.send(&json!({"kind": "turn_input", "turn": 1}), b"ve\n");
    let asked = keeper.wait_for("stdin_wait").header;
    assert_eq!((&asked["prompt"], &asked["secret"]), (&json!("word? "), &json!(true)));
    keeper.send(&json!({"kind": "turn_input", "turn": 1}), b"secret\nunread\n");
    let (frames, _) = keeper.finish();
    assert_eq!(text_of(&frames, "result"), "('ada', 'love', 'secret')\n");
    // The line that was not read is gone, and so is the end of input of an earlier turn.
    for turn in [2, 3] {
        keeper.begin("try:\n    input()\nexcept EOFError:\n    print('end')");
        keeper.wait_for("stdin_wait");
        keeper.send(&json!({"kind": "turn_input", "turn": turn, "eof": true}), b"");
        let (frames, _) = keeper.finish();
        assert_eq!(text_of(&frames, "stdout"), "end\n");
    }
    keeper.shut_down();
}

#[test]
fn an_interrupt_stops_only_the_turn_that_it_names() {
    let Some(mut keeper) = ipykernel() else { return };
    keeper.run("x = 7; import asyncio, subprocess, time");
    for code in [
        "print('on', flush=True); time.sleep(60)",
        "print('on', flush=True)\nwhile True: pass",
        "print('on', flush=True); subprocess.run(['sleep', '60'])",
        "print('on', flush=True); await asyncio.sleep(60)",
        "input('on')",
    ] {
        keeper.begin(code);
        keeper.receive().unwrap();
        let turn = keeper.turn;
        keeper.interrupt(turn);
        assert_eq!(keeper.finish().1["outcome"], "interrupted", "{code}");
        keeper.interrupt(turn);
        assert_eq!(keeper.result("time.sleep(0.05); x"), "7\n", "{code}");
    }
    // The interrupt comes before the kernel has begun, at once after the code, or before it.
    for _ in 0..20 {
        keeper.begin("time.sleep(60)");
        let turn = keeper.turn;
        keeper.interrupt(turn);
        assert_eq!(keeper.finish().1["outcome"], "interrupted");
    }
    let next = keeper.turn + 1;
    keeper.interrupt(next);
    assert_eq!(keeper.run("x = 8").1["outcome"], "interrupted");
    // Code that catches the interrupt continues, and its outcome is its own.
    keeper.begin("try:\n    input('on')\nexcept KeyboardInterrupt:\n    pass\nx");
    keeper.wait_for("stdin_wait");
    let turn = keeper.turn;
    keeper.interrupt(turn);
    let (frames, idle) = keeper.finish();
    assert_eq!((text_of(&frames, "result").as_str(), &idle["outcome"]), ("7\n", &json!("ok")));
    keeper.shut_down();
}

#[test]
fn a_kernel_that_begins_after_the_interrupt_gets_it_again() {
    let Some(mut keeper) = fake_kernel("ipc") else { return };
    keeper.begin("slow-begin");
    // The kernel has the code. A worker that has not passed it on would not run it at all.
    assert_eq!(keeper.receive().unwrap().body, b"on\n");
    let turn = keeper.turn;
    keeper.interrupt(turn);
    assert_eq!(keeper.finish().1["outcome"], "interrupted");
    assert_eq!(keeper.result("plain"), "plain\n");
    keeper.shut_down();
}

const INTERRUPTED_CALLS: usize = 20;

#[test]
fn host_tools_are_called_and_given_up() {
    let Some(mut keeper) = ipykernel() else { return };
    assert!(keeper.ready["capabilities"].as_array().unwrap().contains(&json!("tools")));
    keeper.begin("tools.files.read(path='é', size=10**30)");
    let call = keeper.wait_for("tool_call");
    assert_eq!(
        (&call.header["name"], call.header["turn"].as_u64()),
        (&json!("files.read"), Some(1))
    );
    let arguments: Value = serde_json::from_slice(&call.body).unwrap();
    assert_eq!(arguments["path"], "é");
    assert!(String::from_utf8_lossy(&call.body).contains(&format!("1{}", "0".repeat(30))));
    let answer = json!({"kind": "tool_result", "turn": 1, "call": call.header["call"], "ok": true});
    keeper.send(&answer, br#"{"text": "found\n", "n": null}"#);
    assert_eq!(text_of(&keeper.finish().0, "result"), "{'text': 'found\\n', 'n': None}\n");
    keeper.begin("tools(deadline=2.5).broken()");
    let call = keeper.wait_for("tool_call").header;
    assert_eq!(call["deadline_ms"], 2500);
    let answer = json!({"kind": "tool_result", "turn": 2, "call": call["call"], "ok": false});
    keeper.send(&answer, br#"{"message": "no host", "code": "tool_not_found"}"#);
    assert_eq!(keeper.finish().1["error"], json!({"name": "ToolNotFound", "message": "no host"}));
    // Often: the interrupt comes when the kernel is about to wait for the answer.
    for _ in 0..INTERRUPTED_CALLS {
        keeper.begin("tools.slow()");
        let call = keeper.wait_for("tool_call").header;
        keeper.interrupt(keeper.turn);
        assert_eq!(keeper.wait_for("tool_cancel").header["call"], call["call"]);
        assert_eq!(keeper.finish().1["outcome"], "interrupted");
    }
    // Many at once, answered in reverse order, one of them too late.
    keeper.begin(
        "import concurrent.futures as f\nwith f.ThreadPoolExecutor(38) as pool:\n    \
         got = list(pool.map(lambda i: tools.echo(i=i), range(38)))\ngot == list(range(38))",
    );
    let calls: HashMap<u64, Vec<u8>> = (0..38)
        .map(|_| keeper.wait_for("tool_call"))
        .map(|call| (call.header["call"].as_u64().unwrap(), call.body))
        .collect();
    for (number, body) in calls {
        let arguments: Value = serde_json::from_slice(&body).unwrap();
        let turn = keeper.turn;
        let answer = json!({"kind": "tool_result", "turn": turn, "call": number, "ok": true});
        keeper.send(&answer, arguments["i"].to_string().as_bytes());
    }
    assert_eq!(text_of(&keeper.finish().0, "result"), "True\n");
    keeper.shut_down();
}

#[test]
fn a_kernel_that_dies_ends_the_worker_with_its_status() {
    let Some(mut keeper) = ipykernel() else { return };
    keeper.begin("import os, time; print(os.getpid(), flush=True); time.sleep(60)");
    let kernel = String::from_utf8(keeper.receive().unwrap().body).unwrap();
    let begun = Instant::now();
    // Killed from here: what a kernel has printed is on its way for a moment, and dies with the kernel.
    let kernel = Pid::from_raw(kernel.trim().parse().unwrap()).unwrap();
    kill_process(kernel, Signal::KILL).unwrap();
    assert!(keeper.receive().is_none());
    assert!(begun.elapsed() < Duration::from_secs(5));
    let (code, said) = keeper.end();
    assert_eq!(code, Some(1));
    assert!(said.contains("the kernel ended (signal: 9 (SIGKILL))"), "{said}");
}

#[test]
fn a_closed_socket_ends_kernel_and_worker_in_a_turn() {
    let Some(mut keeper) = ipykernel() else { return };
    keeper.begin("import os; print(os.getpid(), flush=True)\nwhile True: pass");
    let kernel = String::from_utf8(keeper.receive().unwrap().body).unwrap();
    keeper.socket.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(keeper.end().0, Some(0));
    assert!(!Path::new("/proc").join(kernel.trim()).exists());
}

#[test]
fn a_misbehaving_kernel_never_hangs_or_mixes_turns() {
    for transport in ["ipc", "tcp"] {
        let Some(mut keeper) = fake_kernel(transport) else { return };
        assert_eq!(keeper.ready["worker"], "fake 1 (? ?)");
        assert_eq!(keeper.result("plain"), "plain\n");
        // The kernel loses one half of the turn's end.
        assert_eq!(keeper.result("no-idle"), "no-idle\n");
        let (frames, idle) = keeper.run("no-reply");
        assert_eq!(text_of(&frames, "result"), "no-reply\n");
        assert_eq!(idle["error"]["name"], "NoReply");
        // Messages that are forged or garbage change nothing.
        let (frames, idle) = keeper.run("forged");
        assert_eq!((text_of(&frames, "stdout").as_str(), &idle["outcome"]), ("", &json!("ok")));
        assert_eq!(keeper.result("garbage"), "garbage\n");
        // Messages about the turn before are its background output, and not the end of this turn.
        let (frames, idle) = keeper.run("late");
        assert_eq!(text_of(&frames, "result"), "late\n");
        assert_eq!(idle["outcome"], "ok");
        let late: Vec<_> =
            frames.iter().filter(|frame| frame.header["background"] == json!(true)).collect();
        assert!(late.iter().all(|frame| frame.header["turn"] == keeper.turn - 1), "{late:?}");
        assert_eq!(late[0].body, b"late\n");
        // The first late result is background output. From then on the worker waits for such results.
        keeper.begin("late-result");
        assert_eq!(keeper.finish().1["outcome"], "ok");
        assert_eq!(keeper.receive().unwrap().header["background"], json!(true));
        assert_eq!(keeper.result("late-result"), "late-result\n");
        keeper.begin("die 3");
        assert_eq!(keeper.receive().unwrap().body, b"last words\n");
        assert!(keeper.receive().is_none());
        let (code, said) = keeper.end();
        assert!(said.contains("the kernel ended (exit status: 3)"), "{said}");
        assert_eq!((code, said.matches("was dropped").count()), (Some(1), 1), "{said}");
    }
}

#[test]
fn no_output_is_lost_while_the_keeper_does_not_read() {
    const LINES: usize = 30_000;
    let Some(mut keeper) = fake_kernel("ipc") else { return };
    keeper.begin(&format!("flood {LINES}"));
    // The keeper reads only when the worker has stopped the kernel.
    let stopped = || {
        let children = format!("/proc/{0}/task/{0}/children", keeper.worker.id());
        let kernel = fs::read_to_string(children).unwrap_or_default();
        let status =
            fs::read_to_string(format!("/proc/{}/stat", kernel.trim())).unwrap_or_default();
        status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    let begun = Instant::now();
    while !stopped() {
        assert!(begun.elapsed() < PATIENCE, "the kernel is never stopped");
        std::thread::yield_now();
    }
    let (frames, idle) = keeper.finish();
    assert_eq!(idle["outcome"], "ok");
    let text = text_of(&frames, "stdout");
    assert_eq!(text.lines().count(), LINES);
    assert!(text.lines().enumerate().all(|(at, line)| line.starts_with(&format!("{at:07} "))));
    keeper.shut_down();
}

#[test]
fn a_deaf_kernel_is_ended_by_a_shutdown() {
    let Some(mut keeper) = fake_kernel("ipc") else { return };
    keeper.begin("deaf");
    keeper.interrupt(1);
    let begun = Instant::now();
    keeper.shut_down();
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_kernel_that_cannot_start_is_named() {
    let directory = tempfile::tempdir().unwrap();
    for (kernel, expected) in [
        (json!({"argv": ["no-such-kernel", "{connection_file}"]}), "no-such-kernel: "),
        (json!({"argv": ["false"]}), "the kernel ended before it answered (exit status: 1)"),
        (json!({"argv": []}), "has an empty argv"),
    ] {
        let file = directory.path().join("kernel.json");
        fs::write(&file, kernel.to_string()).unwrap();
        let guard = STARTING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (_socket, of_worker) = UnixStream::pair().unwrap();
        fcntl_setfd(&of_worker, FdFlags::empty()).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_windlass-worker"))
            .args(["jupyter", "--kernel-json"])
            .arg(&file)
            .env("WINDLASS_FD", of_worker.as_raw_fd().to_string())
            .output()
            .unwrap();
        drop(guard);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(expected) && output.status.code() == Some(1), "{said}");
    }
}

#[test]
fn an_r_kernel_runs_turns() {
    let found = Command::new("R").args(["--slave", "-e", "library(IRkernel)"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        return println!("skipped: R has no IRkernel");
    }
    let argv = ["R", "--slave", "-e", "IRkernel::main()", "--args", "{connection_file}"];
    let mut keeper = KernelKeeper::start(&json!({"argv": argv, "language": "R"}));
    assert_eq!(keeper.result("x <- 20; x + 1"), "[1] 21\n");
    let (frames, idle) = keeper.run("cat('before\\n'); stop('no')");
    assert_eq!(text_of(&frames, "stdout"), "before\n");
    assert!(idle["error"]["message"].as_str().unwrap().contains("no"));
    let (frames, _) = keeper.run("plot(1:3)");
    let display = frames.iter().find(|frame| frame.header["kind"] == "display").unwrap();
    assert!(display.header["mime"] == "image/png" && display.body.starts_with(b"\x89PNG"));
    keeper.begin("name <- readline('name? '); name");
    keeper.wait_for("stdin_wait");
    let turn = keeper.turn;
    keeper.send(&json!({"kind": "turn_input", "turn": turn}), b"ada\n");
    assert_eq!(text_of(&keeper.finish().0, "result"), "[1] \"ada\"\n");
    for code in ["cat('on\\n'); Sys.sleep(60)", "cat('on\\n'); repeat {}"] {
        keeper.begin(code);
        keeper.receive().unwrap();
        let turn = keeper.turn;
        keeper.interrupt(turn);
        assert_eq!(keeper.finish().1["outcome"], "interrupted", "{code}");
        assert_eq!(keeper.result("x"), "[1] 20\n");
    }
    keeper.shut_down();
}

#[test]
fn a_deno_kernel_runs_turns() {
    let deno = std::env::var("WINDLASS_TEST_DENO").unwrap_or("deno".to_owned());
    if !Command::new(&deno).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return println!("skipped: there is no {deno}");
    }
    let argv = [&deno, "jupyter", "--kernel", "--conn", "{connection_file}"];
    let kernel = json!({"argv": argv, "language": "typescript", "interrupt_mode": "message"});
    let mut keeper = KernelKeeper::start(&kernel);
    keeper.run("let x = 20");
    for _ in 0..50 {
        assert_eq!(keeper.result("x + 1"), "21\n");
    }
    let (_, idle) = keeper.run("throw new TypeError('no')");
    assert_eq!(idle["error"], json!({"name": "TypeError", "message": "no"}));
    keeper.begin("console.log('on'); while (true) {}");
    keeper.receive().unwrap();
    let turn = keeper.turn;
    keeper.interrupt(turn);
    assert_eq!(keeper.finish().1["outcome"], "interrupted");
    assert_eq!(keeper.result("x"), "20\n");
    keeper.shut_down();
}
