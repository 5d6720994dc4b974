//! The suite finds faults: each test makes one mistake in the tiny Perl worker and names the cases that must
//! fail.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use windlass_worker_check::{CaseVerdict, CheckPlan, SnippetSet, check};

/// A mistake: a text of the worker, what stands there instead, and the cases that must fail.
type Mistake = (&'static str, &'static str, &'static [&'static str]);

const MISTAKES: &[Mistake] = &[
    ("protocol => 1,", "protocol => 2,", &["ready"]),
    (
        "send_frame({\n    kind => \"worker_ready\"",
        "print 1; send_frame({\n    kind => \"worker_ready\"",
        &["ready-first"],
    ),
    ("kind => \"worker_ready\"", "kind => \"ready\"", &["ready"]),
    ("\"idle\", turn => $running + 0", "\"idle\", turn => 1", &["turn-number", "state"]),
    ("\"idle\", turn => $running + 0", "\"idle\", turn => \"$running\"", &["turn-number"]),
    (
        "$running = undef;",
        "send_output('result', 'late'); $running = undef;",
        &["output-before-idle"],
    ),
    ("$| = 1;\nbinmode", "binmode", &["output-before-idle", "interrupt-sleep"]),
    ("last if length $unread < 4 + $rest;", "", &["frame-in-pieces"]),
    ("while (length $unread >= 8)", "if (length $unread >= 8)", &["frames-together"]),
    ("next if $header->{kind} ne \"turn_start\";", "", &["unknown-kind", "frames-together"]),
    ("next if $header->{more};", "", &["frames-together", "interrupt-between-chunks"]),
    ("BODY_MAX => 196_604", "BODY_MAX => 1 << 30", &["result-long"]),
    ("substr \"$_[0]\", 0, TEXT_MAX", "\"$_[0]\"", &["error-long", "prompt-long"]),
    ("$text =~ s/[^", "$text =~ s/[^\\x{d800}", &["error-unicode"]),
    ("send_output(\"traceback\", \"$error\");", "", &["error"]),
    (
        "die bless { status => $status }, \"Tiny::Exit\" if $$ == $worker;",
        "",
        &["exit-0", "exit-3"],
    ),
    ("return { outcome => \"ok\" } if $error->{status} == 0;", "", &["exit-outcome"]),
    (
        "$interrupts{ $header->{turn} } = 1",
        "$interrupts{ $header->{turn} } = 1 if defined $running",
        &["interrupt-before-start", "interrupt-between-chunks"],
    ),
    ("    1 while receive(0);\n    $is_open = 1;", "    $is_open = 1;", &["interrupt-loop"]),
    (
        "$SIG{INT} = $SIG{URG} = \\&on_signal;    #",
        "$SIG{INT} = \\&on_signal; $SIG{URG} = 'IGNORE'; #",
        &["interrupt-behind-frames"],
    ),
    ("stop() if $interrupts{$running};\n}", "stop();\n}", &["interrupt-old-turn"]),
    ("$SIG{URG} = \"IGNORE\";\n", "", &["interrupt-caught"]),
    (
        "return unless $is_open && !$was_stopped && $$ == $worker;",
        "CORE::exit(1) unless $is_open;",
        &["sigint-after-idle"],
    ),
    ("$is_open = 0;\n    my @result", "my @result", &["tool-interrupted"]),
    ("&& $header->{turn} == $running;", ";", &["input-wrong-turn"]),
    ("last unless $header->{more};", "last;", &["input-chunked"]),
    ("($input, $at_eof, $was_stopped) = (\"\", 0, 0);", "$was_stopped = 0;", &["input-leftover"]),
    ("$at_eof = 1 if $header->{eof};", "$input = \"\\n\" if $header->{eof};", &["input-eof"]),
    (
        "($input, $at_eof, $was_stopped) = (\"\", 0, 0);",
        "($input, $was_stopped) = (\"\", 0);",
        &["input-eof"],
    ),
    (
        "finish() if $header->{kind} eq \"shutdown\";\n        next unless $header->{kind} eq \"turn_input\"",
        "next unless $header->{kind} eq \"turn_input\"",
        &["shutdown-in-input"],
    ),
    ("return undef if defined $running && $interrupts{$running};", "", &["interrupt-input"]),
    ("&& $header->{call} == $call;", ";", &["tool-wrong-call", "tool-chunked"]),
    ("return (0, $part) unless $header->{ok};", "", &["tool-fails-halfway"]),
    ("return (1, $result) unless $header->{more};", "return (1, $result);", &["tool-chunked"]),
    ("FD_CLOEXEC;    #", "0;    #", &["socket-in-child"]),
    ("{ close $socket; $SIG", "{ $SIG", &["socket-in-fork"]),
    ("delete $ENV{WINDLASS_FD}", "$ENV{WINDLASS_FD}", &["environment"]),
    ("POSIX::_exit(0) if $count == 0;", "", &["socket-closed", "socket-closed-in-input"]),
    (
        "finish() if $header->{kind} eq \"shutdown\";\n    next if",
        "next if",
        &["shutdown", "shutdown-in-turn"],
    ),
    ("send_frame({ kind => \"session_end\", reason => \"shutdown\" });", "", &["session-end"]),
];

/// How often a worker with a mistake is checked until the mistake is found.
const TRIES: usize = 5;

#[test]
fn every_mistake_is_found() {
    let perl = Command::new("perl").arg("-MJSON::PP").stdin(Stdio::null()).status();
    if !perl.is_ok_and(|status| status.success()) {
        println!("skipped: perl is not there");
        return;
    }
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workers/tiny/worker.pl");
    let program = fs::read_to_string(program).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut missed = vec![];
    for (number, (right, wrong, cases)) in MISTAKES.iter().enumerate() {
        assert!(program.contains(right), "the worker has no `{right}`");
        let path = directory.path().join(format!("worker-{number}.pl"));
        fs::write(&path, program.replacen(right, wrong, 1)).unwrap();
        let plan = CheckPlan {
            command: vec!["perl".into(), path.display().to_string()],
            environment: vec![],
            snippets: SnippetSet::built_in("perl"),
            cases: cases.iter().map(|name| (*name).to_owned()).collect(),
            step_time: Duration::from_secs(3),
        };
        // Some mistakes show only if an interrupt comes at one moment.
        let mut unseen = Vec::new();
        for _ in 0..TRIES {
            let report = check(&plan, |_| {}).unwrap();
            unseen.clear();
            for case in cases.iter().copied() {
                match report.case(case).map(|case| &case.verdict) {
                    Some(CaseVerdict::Failed(why)) => println!("{wrong}: {case}: {why}"),
                    other => unseen.push(format!("`{wrong}`: {case}: {other:?}")),
                }
            }
            if unseen.is_empty() {
                break;
            }
        }
        missed.append(&mut unseen);
    }
    assert!(missed.is_empty(), "mistakes that the suite does not find:\n{}", missed.join("\n"));
}
