//! Builds one filter program from many rules. The program finds the number of a call by binary search, and
//! checks arguments only for calls with a rule. The reason: when a filter is installed, the kernel runs it
//! for every call number, to learn which calls it always allows. With a linear list of this length that takes
//! ten times as long.

use std::collections::BTreeMap;

use super::{FilterError, Instruction, newer};

/// A filter as the kernel runs it.
pub(crate) type FilterProgram = Vec<Instruction>;

/// What the filter does with a call that has a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilterAnswer {
    /// The call fails with this error number.
    Refused(i32),
    /// The index of the program that checks the arguments of the call.
    ByArguments(usize),
}

/// Numbers from here on are calls that were not reviewed, and then a second table of the same calls (x32). No
/// rule names them.
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

/// A program that gives each of these calls its answer and allows all other reviewed calls. Calls that were
/// not reviewed fail with ENOSYS. A process that makes calls of another architecture is killed.
pub(super) fn program(
    answers: &BTreeMap<i64, FilterAnswer>,
    programs: &[FilterProgram],
) -> Result<FilterProgram, FilterError> {
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
    // If the number is lower, the branch skips the last instruction, which refuses calls that were not
    // reviewed.
    front[4].jf = 1;
    let mut jumps = Vec::new();
    append_search(&named, &mut front, &mut jumps)?;
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

/// Appends the binary search for these call numbers. `jumps` gets each jump to a program whose distance is
/// not known yet: the index of the jump and of the program.
fn append_search(
    named: &[(u32, FilterAnswer)],
    into: &mut FilterProgram,
    jumps: &mut Vec<(usize, usize)>,
) -> Result<(), FilterError> {
    match named {
        [] => into.push(give(ALLOW)),
        [(call, answer)] => {
            into.push(branch(IF_EQUAL, *call, 1)?);
            into.push(give(ALLOW));
            match answer {
                FilterAnswer::Refused(errno) => into.push(give(refusal(*errno))),
                FilterAnswer::ByArguments(program) => {
                    jumps.push((into.len(), *program));
                    into.push(Instruction { code: JUMP, jt: 0, jf: 0, k: 0 });
                }
            }
        }
        many => {
            let (lower, upper) = many.split_at(many.len() / 2);
            let at = into.len();
            into.push(give(ALLOW));
            append_search(lower, into, jumps)?;
            into[at] = branch(IF_AT_LEAST, upper[0].0, into.len() - at - 1)?;
            append_search(upper, into, jumps)?;
        }
    }
    Ok(())
}

/// A conditional jump: if the comparison holds, the program skips `further` instructions.
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

    fn run(program: &FilterProgram, architecture: u32, call: u32) -> (u32, usize) {
        super::super::trial::run(program, architecture, call, [0; 6])
    }

    #[test]
    fn each_call_gets_its_answer_and_no_other() {
        let programs = vec![vec![give(11)], vec![give(21), give(22)], vec![give(31)]];
        let answers: BTreeMap<i64, FilterAnswer> = (0..90)
            .map(|n| {
                let answer = match n % 5 {
                    0 => FilterAnswer::ByArguments(2),
                    1 => FilterAnswer::ByArguments(1),
                    2 => FilterAnswer::ByArguments(0),
                    other => FilterAnswer::Refused(other),
                };
                (i64::from(n * 4 + 1), answer)
            })
            .collect();
        let program = program(&answers, &programs).unwrap();
        for call in 0..NOT_REVIEWED {
            let (given, steps) = run(&program, ARCHITECTURE, call);
            let expected = match answers.get(&i64::from(call)) {
                None => ALLOW,
                Some(FilterAnswer::Refused(errno)) => refusal(*errno),
                Some(FilterAnswer::ByArguments(program)) => [11, 21, 31][*program],
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
        let answers = (0..400).map(|call| (call, FilterAnswer::Refused(1))).collect();
        assert!(matches!(program(&answers, &[]), Err(FilterError::TooLong)));
    }
}
