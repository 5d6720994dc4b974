//! The code that turns run, and the output that each must have. Every turn leaves a mark in the session's
//! memory and in a file of its workspace. The marks reveal a turn that ran twice or in another session.

use super::random::Random;

/// The file in the workspace to which every turn appends its id.
pub const MARKS: &str = "marks";

/// What a turn's output must be.
#[derive(Debug, Clone)]
pub enum Expected {
    Exactly(Vec<u8>),
    /// The bytes, and then any error text of the interpreter.
    Beginning(Vec<u8>),
    /// Complete lines of two streams: each stream in its order, the streams mixed in any way.
    TwoStreams {
        stdout: Vec<String>,
        stderr: Vec<String>,
    },
    Anything,
}

/// The code of a turn, and its expected output.
#[derive(Debug, Clone)]
pub struct TurnProgram {
    pub code: String,
    pub expected: Expected,
}

/// Code that leaves the marks of a turn. If the disk is full, only memory has the mark.
pub fn preamble(turn: &str, token: &str) -> String {
    format!(
        "import os as _o\n\
         try:\n    _f=_o.open('{MARKS}',_o.O_WRONLY|_o.O_APPEND|_o.O_CREAT)\n    \
         try: _o.write(_f,b'{turn}\\n')\n    finally: _o.close(_f)\n\
         except OSError: pass\n\
         try: seen\n\
         except NameError: seen=[];me='{token}'\n\
         seen.append('{turn}')\n\
         assert me=='{token}','MIXED '+me\n"
    )
}

/// Code that prints the marks in the session's memory.
pub fn state() -> &'static str {
    "import json;print(json.dumps([me,seen]))\n"
}

/// Prints numbered lines in four ways.
pub fn numbered(turn: &str, random: &mut Random) -> TurnProgram {
    let sizes = [(5, 10), (5, 10), (50, 30), (200, 60), (1000, 50), (100, 4000)];
    let (lines, width) = *random.pick(&sizes);
    let pause = if random.chance(20) { 0.002 } else { 0.0 };
    let code = format!(
        "import sys,os,time\n\
         for i in range({lines}):\n    \
         s='{turn}:%d:%s\\n'%(i,'ab'*((i*7919)%{width}))\n    \
         if {pause} and i%20==0: time.sleep({pause})\n    \
         k=i%4\n    \
         if k==0: print(s,end='')\n    \
         elif k==1: sys.stdout.flush();os.write(1,s.encode())\n    \
         elif k==2: sys.stdout.buffer.write(s.encode())\n    \
         else: sys.stdout.write(s)\n"
    );
    let line = |i: usize| format!("{turn}:{i}:{}\n", "ab".repeat((i * 7919) % width));
    let printed: String = (0..lines).map(line).collect();
    TurnProgram { code, expected: Expected::Exactly(printed.into_bytes()) }
}

/// Prints bytes that are not UTF-8, NUL bytes, and a character that is split over two writes.
pub fn odd_bytes(random: &mut Random) -> TurnProgram {
    let rounds = random.within(1, 40);
    let code = format!(
        "import os\n\
         for i in range({rounds}):\n    \
         os.write(1,bytes(range(256)))\n    os.write(1,b'\\xc3');os.write(1,b'\\xa9\\n')\n"
    );
    let mut once: Vec<u8> = (0..=255).collect();
    once.extend_from_slice(b"\xc3\xa9\n");
    let rounds = usize::try_from(rounds).unwrap_or_default();
    TurnProgram { code, expected: Expected::Exactly(once.repeat(rounds)) }
}

/// Prints lines with multi-byte characters to both streams.
pub fn two_streams(turn: &str, random: &mut Random) -> TurnProgram {
    let lines = random.within(10, 120);
    let code = format!(
        "import sys\n\
         for i in range({lines}):\n    \
         print('out {turn} %d ééé'%i)\n    print('err {turn} %d ééé'%i,file=sys.stderr)\n"
    );
    let of = |stream: &str| (0..lines).map(|i| format!("{stream} {turn} {i} ééé")).collect();
    TurnProgram { code, expected: Expected::TwoStreams { stdout: of("out"), stderr: of("err") } }
}

/// Prints lines with pauses between them, for the given time.
pub fn slow(turn: &str, millis: u64) -> TurnProgram {
    let lines = millis / 20 + 1;
    let code = format!(
        "import time\nfor i in range({lines}):\n    print('{turn}',i)\n    time.sleep(0.02)\n"
    );
    let printed: String = (0..lines).map(|i| format!("{turn} {i}\n")).collect();
    TurnProgram { code, expected: Expected::Exactly(printed.into_bytes()) }
}

/// Prints one line: the turn's id.
pub fn brief(turn: &str) -> TurnProgram {
    let expected = Expected::Exactly(format!("{turn}\n").into_bytes());
    TurnProgram { code: format!("print('{turn}')\n"), expected }
}

/// Prints one line and raises an exception.
pub fn failing(turn: &str) -> TurnProgram {
    let code = format!("print('before {turn}')\nraise ValueError('{turn}')\n");
    let expected = Expected::Beginning(format!("before {turn}\n").into_bytes());
    TurnProgram { code, expected }
}

/// The first difference between expected and actual output, if there is one. A turn that did not end `ok` may
/// have printed only the beginning, and a traceback.
pub fn difference(expected: &Expected, got: &[u8], ended_ok: bool) -> Option<String> {
    match expected {
        Expected::Anything => None,
        Expected::Exactly(wanted) if ended_ok => (got != wanted).then(|| shown(wanted, got)),
        Expected::Exactly(wanted) => {
            let rest = &got[common(wanted, got)..];
            let is_traceback = contains(rest, b"Traceback") || contains(rest, b"KeyboardInterrupt");
            (!rest.is_empty() && !is_traceback).then(|| shown(wanted, got))
        }
        Expected::Beginning(wanted) => {
            // A turn that was stopped early may have printed less.
            let enough = common(wanted, got) >= wanted.len().min(got.len());
            (!enough).then(|| shown(wanted, got))
        }
        Expected::TwoStreams { stdout, stderr } if ended_ok => {
            let text = String::from_utf8_lossy(got);
            let of =
                |stream: &'static str| text.lines().filter(move |line| line.starts_with(stream));
            let whole = of("out").eq(stdout) && of("err").eq(stderr);
            let count = text.lines().count();
            let known = |line: &&str| stdout.iter().chain(stderr).any(|wanted| wanted == line);
            let torn = text.lines().find(|line| !known(line));
            (!whole || count != stdout.len() + stderr.len()).then(|| {
                format!("{count} lines of two streams; the first unexpected line: {torn:?}")
            })
        }
        Expected::TwoStreams { .. } => None,
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

fn common(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

fn shown(wanted: &[u8], got: &[u8]) -> String {
    let at = common(wanted, got);
    let around = |bytes: &[u8]| {
        let (from, to) = (at.saturating_sub(20).min(bytes.len()), (at + 60).min(bytes.len()));
        String::from_utf8_lossy(&bytes[from..to]).into_owned()
    };
    let (wanted_bytes, got_bytes) = (wanted.len(), got.len());
    format!(
        "{got_bytes} bytes instead of {wanted_bytes}, different at byte {at}: {:?} instead of {:?}",
        around(got),
        around(wanted)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expected: Expected, got: &str, ended_ok: bool) -> bool {
        difference(&expected, got.as_bytes(), ended_ok).is_none()
    }

    #[test]
    fn output_that_is_lost_doubled_or_of_another_turn_differs() {
        let exactly = || Expected::Exactly(b"a\nb\n".to_vec());
        assert!(check(exactly(), "a\nb\n", true));
        assert!(!check(exactly(), "a\n", true));
        assert!(!check(exactly(), "a\na\nb\n", true));
        assert!(check(exactly(), "a\n", false));
        assert!(check(exactly(), "a\nTraceback (most recent call last)", false));
        assert!(!check(exactly(), "a\nc\n", false));
        let beginning = || Expected::Beginning(b"before\n".to_vec());
        assert!(check(beginning(), "before\nTraceback", false));
        assert!(check(beginning(), "bef", false));
        assert!(!check(beginning(), "after", false));
    }

    #[test]
    fn lines_of_two_streams_may_mix_but_not_tear() {
        let streams = || Expected::TwoStreams {
            stdout: vec!["out t 0 ééé".to_owned()],
            stderr: vec!["err t 0 ééé".to_owned()],
        };
        assert!(check(streams(), "err t 0 ééé\nout t 0 ééé\n", true));
        assert!(!check(streams(), "err t 0 éout t 0 ééé\néé\n", true));
        assert!(!check(streams(), "out t 0 ééé\n", true));
    }
}
