//! The shell worker, driven as a keeper drives it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod driver;

use std::time::{Duration, Instant};

use serde_json::json;

use self::driver::Worker;

/// Runs turns one after the other and checks what each prints and how it ends.
fn check(turns: &[(&str, &str, &str)]) {
    let mut worker = Worker::start("shell", &[]);
    for (code, stdout, end) in turns {
        let seen = worker.run(code);
        assert_eq!(
            (seen.stdout.as_str(), seen.end().as_str()),
            (*stdout, *end),
            "{code}\n{seen:?}"
        );
    }
    worker.shutdown();
}

#[test]
fn state_stays_between_turns() {
    check(&[
        ("x=5; cd /tmp; f() { echo f $1; }; shopt -s expand_aliases; alias hi='echo hi'", "", "ok"),
        ("echo $x $PWD; f 1; hi", "5 /tmp\nf 1\nhi\n", "ok"),
        ("set -o pipefail; false | true", "", "error ExitStatus: exit status 1"),
        ("echo $?; false | true", "1\n", "error ExitStatus: exit status 1"),
        ("cat <<EOF\n$x\ntwo\nEOF\nif true\nthen echo yes\nfi", "5\ntwo\nyes\n", "ok"),
        ("export Y=3; exec 3>&1; echo $(bash -c 'echo $Y')", "3\n", "ok"),
        ("echo three >&3; exec 3>&-", "three\n", "ok"),
        ("d=/tmp/wl-gone-$$; mkdir $d; cd $d; rmdir $d", "", "ok"),
        ("cd /tmp; echo $PWD", "/tmp\n", "ok"),
    ]);
}

#[test]
fn the_status_is_the_outcome() {
    check(&[
        ("exit 3\necho no", "", "error ExitStatus: exit status 3"),
        ("exit", "", "error ExitStatus: exit status 3"),
        ("exit 0; echo no", "", "ok"),
        (
            "f() { for i in 1 2; do exit 4; done; }; x=1; f; echo no",
            "",
            "error ExitStatus: exit status 4",
        ),
        (
            "echo $x; (exit 9); echo $?; echo a | exit 5",
            "1\n9\n",
            "error ExitStatus: exit status 5",
        ),
        ("trap 'echo bye' EXIT; exit 6", "bye\n", "error ExitStatus: exit status 6"),
        ("trap 'echo int' INT; exit 7", "", "error ExitStatus: exit status 7"),
        ("trap -p INT; trap - INT", "trap -- 'echo int' SIGINT\n", "ok"),
        (
            "sh -c 'kill -SEGV $$' 2>/dev/null",
            "",
            "error ExitStatus: exit status 139 (killed by SIGSEGV)",
        ),
        ("set -u; echo $nothing", "", "error ExitStatus: exit status 1"),
        ("set +u; nosuchcommand", "", "error ExitStatus: exit status 127"),
        (
            "echo a\nif then\n",
            "a\n",
            "error SyntaxError: line 2: syntax error near unexpected token `then'",
        ),
        ("sh -c 'exit 2'", "", "error ExitStatus: exit status 2"),
        (
            "echo \"open",
            "",
            "error SyntaxError: line 1: unexpected EOF while looking for matching `\"'",
        ),
        (":", "", "ok"),
    ]);
}

#[test]
fn code_that_ends_bash_does_not_end_the_session() {
    check(&[
        ("x=5; f() { echo f; }; a=(1 '2 3'); cd /tmp; alias q='echo q'", "", "ok"),
        ("set -e\necho one\nfalse\necho no", "one\n", "error ExitStatus: exit status 1"),
        ("set +e; echo $x ${a[1]} $PWD; f; q", "5 2 3 /tmp\nf\nq\n", "ok"),
        ("builtin exit 5", "", "error ExitStatus: exit status 5"),
        ("echo $x", "5\n", "ok"),
        ("kill -SEGV $$", "", "error ExitStatus: exit status 139 (killed by SIGSEGV)"),
        ("echo $x; kill -TERM $$; echo alive", "5\nalive\n", "ok"),
        ("kill -9 $$", "", "error ShellLost: bash ended (killed by SIGKILL) and its state is lost"),
        ("echo ${x-none}; x=6", "none\n", "ok"),
        (
            "exec echo replaced",
            "replaced\n",
            "error ShellLost: bash ended (exit status 0) and its state is lost: exec replaced bash",
        ),
        ("echo alive", "alive\n", "ok"),
    ]);
}

#[test]
fn a_lost_bash_is_told_on_standard_error() {
    let mut worker = Worker::start("shell", &[]);
    let seen = worker.run("kill -9 $$");
    assert_eq!(seen.stderr, "ShellLost: bash ended (killed by SIGKILL) and its state is lost\n");
    worker.shutdown();
}

#[test]
fn code_that_disturbs_the_mechanism_gets_its_outcome() {
    check(&[
        ("PS1='prompt> '; PROMPT_COMMAND='echo command'", "", "ok"),
        ("echo \"$PS1$PROMPT_COMMAND\"; unset PS1 PROMPT_COMMAND", "prompt> echo command\n", "ok"),
        ("readonly PS1=fixed; false", "", "error ExitStatus: exit status 1"),
        ("printf() { :; }; set() { :; }; return() { :; }; eval() { :; }", "", "ok"),
        (
            "echo x; unset -f printf set return eval; false",
            "x\n",
            "error ExitStatus: exit status 1",
        ),
        ("unset -f __windlass_end exit 2>/dev/null; true", "", "ok"),
        ("exec 1>/tmp/wl-out-$$; echo hidden", "", "ok"),
        ("echo more; cat /tmp/wl-out-$$ >&2; rm /tmp/wl-out-$$; exec 1>&2", "", "ok"),
        ("trap 'true' DEBUG; set -C -f; IFS=x", "", "ok"),
        ("false", "", "error ExitStatus: exit status 1"),
        ("set -o posix; exit 3", "", "error ExitStatus: exit status 3"),
        ("set +o posix; exit 4", "", "error ExitStatus: exit status 4"),
    ]);
}

#[test]
fn closed_private_descriptors_end_bash_with_a_named_loss() {
    for code in
        ["for i in {200..254}; do eval \"exec $i>&-\" 2>/dev/null; done", "enable -n printf"]
    {
        let mut worker = Worker::start("shell", &[]);
        let mut ends = Vec::new();
        for code in [code, "echo next", "echo $((1+1))"] {
            let seen = worker.run_with(code, |worker, _, _| worker.input(b"", true));
            assert!(seen.took < Duration::from_secs(3), "{seen:?}");
            ends.push((seen.end(), seen.stdout));
        }
        assert_eq!(ends[2], ("ok".to_owned(), "2\n".to_owned()), "{code}: {ends:?}");
        assert!(ends.iter().any(|(end, _)| end.contains("ShellLost")), "{code}: {ends:?}");
        worker.shutdown();
    }
}

#[test]
fn tracing_shows_the_code_and_not_the_mechanism() {
    let mut worker = Worker::start("shell", &[]);
    worker.run("set -x");
    let seen = worker.run("echo a");
    assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("a\n", "++ echo a\n"));
    assert_eq!(worker.run("set +x").stderr, "++ set +x\n");
    assert_eq!(worker.run("echo a").stderr, "");
    worker.shutdown();
}

#[test]
fn background_jobs_do_not_hold_the_turn() {
    let mut worker = Worker::start("shell", &[]);
    let seen = worker.run("sleep 100 & echo started; job=$!");
    assert!(seen.took < Duration::from_secs(2), "{seen:?}");
    assert_eq!((seen.stdout.as_str(), seen.stderr.as_str()), ("started\n", ""));
    // A child of bash ignores SIGINT only when it has prepared itself. Then it runs the program.
    let seen = worker.interrupt_at_go(
        "sleep 99 & two=$!; while [ \"$(</proc/$two/comm)\" != sleep ]; do :; done; echo go; sleep 50; echo no",
    );
    assert_eq!(seen.outcome, "interrupted");
    let seen = worker
        .run("kill -0 $job && kill -0 $two && echo both; kill $job $two; wait 2>/dev/null; :");
    assert_eq!(seen.stdout, "both\n", "{seen:?}");
    worker.shutdown();
}

#[test]
fn long_and_odd_code_runs() {
    let mut worker = Worker::start("shell", &[]);
    let mut code = b"printf '\xff\xfe\\n' | od -An -tx1; x='".to_vec();
    code.extend(std::iter::repeat_n(b'y', 15 * 1024 * 1024));
    code.extend(b"'; echo ${#x}");
    let seen = worker.run(&code);
    assert_eq!(seen.stdout, " ff fe 0a\n15728640\n", "{}", seen.end());
    assert_eq!(worker.run("echo ${#x}; unset x").stdout, "15728640\n");
    worker.shutdown();
}

#[test]
fn every_way_to_read_asks_for_input() {
    let mut worker = Worker::start("shell", &[]);
    for (code, answers, stdout) in [
        ("read x; echo \"<$x>\"", &["ada\n"][..], "<ada>\n"),
        ("read x; echo \"<$x>\"", &["ada"], "<ada>\n"),
        ("read x y; read z; echo $x $y $z", &["a b\n", "c\n"], "a b c\n"),
        ("head -n 1", &["one\nleft over\n"], "one\n"),
        ("cat; echo end", &["a\n", "b\n", "EOF"], "a\nb\nend\n"),
        ("read x || echo ended", &["EOF"], "ended\n"),
        ("python3 -c 'print(input())'", &["py\n"], "py\n"),
        ("python3 -c 'import os; print(os.read(0, 10))'", &["abc\n"], "b'abc\\n'\n"),
        ("(read x; echo $x) | cat", &["sub\n"], "sub\n"),
        ("exec 7<&0; read -u 7 x; echo $x; exec 7<&-", &["dup\n"], "dup\n"),
        (
            "python3 -c 'import select; select.select([0],[],[]); print(input())'",
            &["sel\n"],
            "sel\n",
        ),
        ("echo piped | cat; read x </dev/null; echo $?", &[], "piped\n1\n"),
        ("sleep 0.5; read x; echo $x", &["late\n"], "late\n"),
    ] {
        let mut left = answers.iter();
        let seen = worker.run_with(code, |worker, header, _| {
            assert_eq!(header["kind"], "stdin_wait", "{code}");
            match left.next() {
                Some(&"EOF") => worker.input(b"", true),
                Some(answer) => worker.input(answer.as_bytes(), false),
                None => panic!("{code}: asked once more"),
            }
        });
        assert_eq!(seen.stdout, stdout, "{code}: {seen:?}");
        assert_eq!(left.len(), 0, "{code}");
    }
    worker.shutdown();
}

#[test]
fn large_input_reaches_slow_readers() {
    let mut worker = Worker::start("shell", &[]);
    let mut part = 0;
    let seen = worker.run_with("printf '%01000000d' 0 | wc -c; wc -c", |worker, _, _| {
        part += 1;
        let body = vec![b'x'; 150_000];
        worker.input(&body, part == 7);
    });
    assert_eq!(seen.stdout, "1000000\n1050006\n", "{seen:?}");
    worker.shutdown();
}

#[test]
fn interrupts_stop_the_foreground_quickly_and_keep_the_state() {
    let mut worker = Worker::start("shell", &[]);
    worker.run("kept=yes");
    for code in [
        "echo go; sleep 50; echo no",
        "echo go; while :; do :; done",
        "echo go; while :; do sleep 0.01; done",
        "echo go; sleep 50 | cat | cat; echo no",
        "echo go; f() { sleep 50; echo no; }; f; echo no",
        "echo go; (sleep 50; echo no); echo no",
        "echo go; python3 -c 'import time; time.sleep(50)' 2>/dev/null; echo no",
        "echo go; wait; sleep 50",
        "echo go; read x",
        "echo go; cat",
        "echo go; x=$(sleep 50); echo no",
    ] {
        let mut quickest = Duration::MAX;
        for _ in 0..3 {
            let seen = worker.interrupt_at_go(code);
            assert_eq!(
                (seen.outcome.as_str(), seen.stdout.as_str()),
                ("interrupted", ""),
                "{code}: {seen:?}"
            );
            println!("{:?} {code}", seen.took);
            quickest = quickest.min(seen.took);
            assert_eq!(worker.run("echo $kept").stdout, "yes\n");
        }
        // Other load on the machine may delay one of them.
        assert!(quickest < Duration::from_millis(800), "{code}: {quickest:?}");
    }
    worker.shutdown();
}

#[test]
fn programs_that_ignore_interrupts_end_before_the_grace_does() {
    let mut worker = Worker::start("shell", &[]);
    // A bash that spins saves its variables only if it gets a processor between the last two steps, which a busy machine may
    // not give it.
    for (code, tries) in [
        ("(trap '' INT; echo go; sleep 50)", 1),
        ("bash -c 'trap \"\" INT TERM; echo go; while :; do sleep 1; done'", 1),
        ("trap '' INT; echo go; while :; do :; done", 3),
    ] {
        let is_kept = (0..tries).any(|_| {
            worker.run("kept=yes");
            let seen = worker.interrupt_at_go(code);
            assert_eq!(seen.outcome, "interrupted", "{code}");
            let after = worker.run("trap - INT; echo $kept");
            println!("{:?} {code}: {after:?}", seen.took);
            after.stdout == "yes\n" && seen.took < Duration::from_millis(4500)
        });
        assert!(is_kept, "{code}");
    }
    worker.shutdown();
}

#[test]
fn interrupts_at_any_moment_leave_the_next_turn_alone() {
    let mut worker = Worker::start("shell", &[]);
    worker.run("n=0");
    for round in 0..150u64 {
        worker.begin("n=$((n+1)); sleep 5 ; :");
        let pause = Instant::now() + Duration::from_micros(round * 37);
        while Instant::now() < pause {
            std::hint::spin_loop();
        }
        worker.interrupt();
        let seen = worker.until_idle();
        assert_eq!(seen.outcome, "interrupted", "{round}: {seen:?}");
        let seen = worker.run("echo alive");
        assert_eq!((seen.stdout.as_str(), seen.end().as_str()), ("alive\n", "ok"), "{round}");
    }
    worker.shutdown();
}

#[test]
fn an_interrupt_before_its_turn_prevents_it() {
    let mut worker = Worker::start("shell", &[]);
    worker.send(&json!({"kind": "interrupt", "turn": 1}), b"");
    let seen = worker.run("echo no");
    assert_eq!((seen.stdout.as_str(), seen.outcome.as_str()), ("", "interrupted"));
    assert_eq!(worker.run("echo yes").stdout, "yes\n");
    worker.shutdown();
}

#[test]
fn host_tools_are_called_from_the_shell() {
    let mut worker = Worker::start("shell", &[]);
    let answer = |worker: &mut Worker, header: &serde_json::Value, body: &[u8]| {
        assert_eq!(header["kind"], "tool_call");
        let ok = header["name"] != "t.fail";
        let body =
            if ok { body.to_vec() } else { br#"{"message":"no luck","type":"Odd"}"#.to_vec() };
        let result = json!({"kind": "tool_result", "turn": header["turn"], "call": header["call"], "ok": ok});
        worker.send(&result, &body);
    };
    let seen = worker.run_with("windlass-tool t.echo --a 1 --b 'two words'", answer);
    assert_eq!(seen.stdout, "{\"a\":1,\"b\":\"two words\"}\n", "{seen:?}");
    let seen = worker.run_with("echo '{\"n\": null}' | windlass-tool t.echo -", answer);
    assert_eq!(seen.stdout, "{\"n\":null}\n", "{seen:?}");
    let seen = worker.run_with("windlass-tool t.fail || echo status $?", answer);
    assert_eq!(
        (seen.stdout.as_str(), seen.stderr.as_str()),
        ("status 1\n", "windlass-tool: Odd: no luck\n")
    );
    let code = "for i in 1 2 3 4; do windlass-tool t.echo --i $i & done; wait";
    let seen = worker.run_with(code, answer);
    assert_eq!(seen.stdout.lines().count(), 4, "{seen:?}");
    worker.begin("windlass-tool t.echo; echo no");
    assert_eq!(worker.receive().0["kind"], "tool_call");
    worker.interrupt();
    assert_eq!(worker.until_idle().outcome, "interrupted");
    worker.shutdown();
}

#[test]
fn a_startup_file_runs_with_the_first_turn() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it's startup");
    for (text, stdout) in [
        ("echo hello; read x; y=3; false", "hello\n3\n"),
        ("echo a; exit 4", "a\n\n"),
        ("y=2\nif then", "2\n"),
        ("y=7; set -e; false", "7\n"),
    ] {
        std::fs::write(&path, text).unwrap();
        let mut worker = Worker::start("shell", &[("WINDLASS_STARTUP", path.to_str().unwrap())]);
        let seen = worker.run("echo $y");
        assert_eq!((seen.stdout.as_str(), seen.end().as_str()), (stdout, "ok"), "{text}: {seen:?}");
        worker.shutdown();
    }
}

#[test]
fn the_worker_ends_with_its_socket() {
    let mut worker = Worker::start("shell", &[]);
    worker.begin("sleep 100");
    let (mut child, socket) = worker.into_parts();
    drop(socket);
    let deadline = Instant::now() + Duration::from_secs(5);
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn children_cannot_reach_the_protocol() {
    let mut worker = Worker::start("shell", &[]);
    let seen = worker.run("echo ${WINDLASS_FD-none}; ls -l /proc/self/fd | grep -c 'socket:' ");
    // The only socket is the channel of windlass-tool.
    assert_eq!(seen.stdout, "none\n1\n");
    worker.shutdown();
}

#[test]
fn a_terminal_is_a_terminal() {
    let mut worker = Worker::start("shell", &[("WINDLASS_TERMINAL", "100x30")]);
    for (code, answers, stdout) in [
        (
            "stty size; test -t 0 -a -t 1 -a -t 2 && echo tty; tput cols",
            &[][..],
            "30 100\r\ntty\r\n100\r\n",
        ),
        ("read -p 'name? ' x; echo \"<$x>\"", &["name? |ada\n"], "name? ada\r\n<ada>\r\n"),
        ("read -s -p 'password: ' x; echo \"<$x>\"", &["password: !|pw\n"], "password: <pw>\r\n"),
        ("cat", &["|x\n", "|EOF"], "x\r\nx\r\n"),
        ("seq 30000 | tail -n 1; printf no-newline", &[], "30000\r\nno-newline"),
        ("python3 -q", &[">>> |print(6*7)\n", ">>> |EOF"], ""),
        ("less /etc/hostname", &["*|q\n"], ""),
        ("vim -u NONE -c q 2>/dev/null || vi -c q || true", &[], ""),
        ("top -b -n1 | head -n 1 | cut -c 1-3", &[], "top\r\n"),
        ("sleep 100 & jobs; kill %1; wait", &[], ""),
        ("exit 3", &[], ""),
    ] {
        if let Some(program) = ["less", "vim"].iter().find(|name| code.starts_with(**name))
            && !std::path::Path::new("/usr/bin").join(program).exists()
        {
            println!("skipped: no {program}");
            continue;
        }
        let mut left = answers.iter();
        let seen = worker.run_with(code, |worker, header, _| {
            assert_eq!(header["kind"], "stdin_wait", "{code}");
            let (prompt, answer) = left.next().expect(code).split_once('|').unwrap();
            let secret = prompt.ends_with('!');
            if prompt != "*" {
                assert_eq!(header["prompt"], prompt.trim_end_matches('!'), "{code}");
            }
            assert_eq!(header["secret"] == true, secret, "{code}");
            if answer == "EOF" {
                worker.input(b"", true)
            } else {
                worker.input(answer.as_bytes(), false)
            }
        });
        if !stdout.is_empty() {
            assert_eq!(seen.stdout, stdout, "{code}: {seen:?}");
        }
        assert_eq!(left.len(), 0, "{code}: {seen:?}");
        assert_eq!(seen.stderr, "", "{code}");
    }
    worker.begin("echo go; sleep 50; echo no");
    while !String::from_utf8_lossy(&worker.receive().1).contains("go") {}
    worker.interrupt();
    let seen = worker.until_idle();
    assert_eq!(seen.outcome, "interrupted", "{seen:?}");
    worker.shutdown();
}

#[test]
fn programs_that_ask_on_the_terminal_can_be_answered_without_one() {
    let mut worker = Worker::start("shell", &[]);
    let code = "python3 -c 'import getpass; print(getpass.getpass(\"secret? \"))'";
    let seen = worker.run_with(code, |worker, header, _| {
        assert_eq!((&header["prompt"], &header["secret"]), (&json!("secret? "), &json!(true)));
        worker.input(b"hidden\n", false);
    });
    assert_eq!(seen.stdout, "hidden\n", "{seen:?}");
    worker.shutdown();
}
