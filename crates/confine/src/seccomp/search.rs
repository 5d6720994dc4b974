//! Builds one filter program from many rules. The program finds a call's number by binary search,
//! and looks at arguments only of calls that a rule names. Reason: when a filter is installed, the
//! kernel runs it for every call number, to learn which calls it always allows. With a linear list
//! of our length that takes ten times as long.

use std::collections::BTreeMap;

use super::{FilterError, Instruction, newer};

pub(crate) type Program = Vec<Instruction>;

/// What becomes of a call that is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The call fails with this error number.
    Refused(i32),
    /// The index of the program that looks at the call's arguments.
    Asked(usize),
}

/// Numbers from here on are calls that nobody has reviewed, and then a second table of the same calls
/// (x32): no rule names them.
const NOT_REVIEWED: u32 = newer::NEWEST_REVIEWED + 1;

#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xC000_00B7;
#[cfg(not(target_arch = "aarch64"))]
pub(super) const ARCHITECTURE: u32 = 0xC000_003E;

const LOAD_NUMBER: Instruction = Instruction { code: 0x20, jt: 0, jf: 0, k: 0 };
const LOAD_ARCHITECTURE: Instruction = Instruction { code: 0x20, jt: 0, jf: 0, k: 4 };
pub(super) const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const JUMP: u16 = 0x05;

pub(super) const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const ERRNO: u32 = 0x0005_0000;

/// A program that answers each of these calls so, allows all others that were reviewed, refuses those
/// that were not as if the kernel did not know them, and ends whoever makes calls of another kind of
/// machine.
pub(super) fn program(
    answers: &BTreeMap<i64, Answer>,
    programs: &[Program],
) -> Result<Program, FilterError> {
    let mut named = Vec::new();
    for (call, answer) in answers {
        named.push((u32::try_from(*call).map_err(|_| FilterError::TooLong)?, *answer));
    }
    let mut front = vec![
        LOAD_ARCHITECTURE,
        branch(IF_EQUAL, ARCHITECTURE, 1)?,
        give(KILL_PROCESS),
        LOAD_NUMBER,
        branch(IF_AT_LEAST, NOT_REVIEWED, 0)?,
        give(refusal(libc::ENOSYS)),
    ];
    // The last of them is for calls that nobody has reviewed.
    front[4].jf = 1;
    let mut jumps = Vec::new();
    halve(&named, &mut front, &mut jumps)?;
    let starts = programs.iter().scan(front.len(), |start, program| {
        let this = *start;
        *start += program.len();
        Some(this)
    });
    let starts: Vec<usize> = starts.collect();
    for (at, program) in jumps {
        let start = starts.get(program).ok_or(FilterError::TooLong)?;
        front[at].k = u32::try_from(start - at - 1).map_err(|_| FilterError::TooLong)?;
    }
    Ok(front.into_iter().chain(programs.iter().flatten().copied()).collect())
}

/// Appends what finds a number among these; where a jump to one of the programs must still be told how
/// far, it is noted.
fn halve(
    named: &[(u32, Answer)],
    into: &mut Program,
    jumps: &mut Vec<(usize, usize)>,
) -> Result<(), FilterError> {
    match named {
        [] => into.push(give(ALLOW)),
        [(call, answer)] => {
            into.push(branch(IF_EQUAL, *call, 1)?);
            into.push(give(ALLOW));
            match answer {
                Answer::Refused(errno) => into.push(give(refusal(*errno))),
                Answer::Asked(program) => {
                    jumps.push((into.len(), *program));
                    into.push(Instruction { code: JUMP, jt: 0, jf: 0, k: 0 });
                }
            }
        }
        many => {
            let (lower, upper) = many.split_at(many.len() / 2);
            let at = into.len();
            into.push(give(ALLOW));
            halve(lower, into, jumps)?;
            into[at] = branch(IF_AT_LEAST, upper[0].0, into.len() - at - 1)?;
            halve(upper, into, jumps)?;
        }
    }
    Ok(())
}

/// Goes on with the next instruction, or so much further if the comparison holds.
fn branch(comparison: u16, with: u32, further: usize) -> Result<Instruction, FilterError> {
    let jt = u8::try_from(further).map_err(|_| FilterError::TooLong)?;
    Ok(Instruction { code: comparison, jt, jf: 0, k: with })
}

pub(super) fn give(answer: u32) -> Instruction {
    const RETURN: u16 = 0x06;
    Instruction { code: RETURN, jt: 0, jf: 0, k: answer }
}

pub(super) fn refusal(errno: i32) -> u32 {
    ERRNO | errno.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &Program, architecture: u32, call: u32) -> (u32, usize) {
        super::super::trial::run(program, architecture, call, [0; 6])
    }

    #[test]
    fn each_call_gets_its_answer_and_no_other() {
        let programs = vec![vec![give(11)], vec![give(21), give(22)], vec![give(31)]];
        let answers: BTreeMap<i64, Answer> = (0..90)
            .map(|n| {
                let answer = match n % 5 {
                    0 => Answer::Asked(2),
                    1 => Answer::Asked(1),
                    2 => Answer::Asked(0),
                    other => Answer::Refused(other),
                };
                (i64::from(n * 4 + 1), answer)
            })
            .collect();
        let program = program(&answers, &programs).unwrap();
        for call in 0..NOT_REVIEWED {
            let (given, steps) = run(&program, ARCHITECTURE, call);
            let expected = match answers.get(&i64::from(call)) {
                None => ALLOW,
                Some(Answer::Refused(errno)) => refusal(*errno),
                Some(Answer::Asked(program)) => [11, 21, 31][*program],
            };
            assert_eq!(given, expected, "call {call}");
            assert!(steps < 18, "{steps} for call {call}");
        }
        for call in [NOT_REVIEWED, 0x3fff_ffff, 0x4000_0000, 0x4000_0001, u32::MAX] {
            assert_eq!(run(&program, ARCHITECTURE, call).0, refusal(libc::ENOSYS), "call {call}");
        }
        assert_eq!(run(&program, 0x4000_0003, 1).0, KILL_PROCESS);
    }

    #[test]
    fn more_than_a_jump_can_span_is_refused() {
        let answers = (0..400).map(|call| (call, Answer::Refused(1))).collect();
        assert!(matches!(program(&answers, &[]), Err(FilterError::TooLong)));
    }
}
