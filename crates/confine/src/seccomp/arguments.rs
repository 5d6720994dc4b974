//! The part of a filter that looks at a call's arguments: rules, each a list of conditions and the
//! error that the call fails with when all of them hold.
//!
//! Only the lower 32 bits of an argument are compared. Every argument that a rule names is an `int`, an
//! `unsigned int` or shorter, of which the kernel itself uses no other bits.

use super::search::{ALLOW, IF_EQUAL, Program, give, refusal};
use super::{FilterError, Instruction};

/// What an argument, counted from 0, must be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Is {
        argument: u8,
        value: u32,
    },
    IsNot {
        argument: u8,
        value: u32,
    },
    /// At least one of these bits is set.
    HasAny {
        argument: u8,
        bits: u32,
    },
    /// These bits of it are not this value.
    MaskedIsNot {
        argument: u8,
        mask: u32,
        value: u32,
    },
}

/// A call fails with `errno` when all conditions hold; always, if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub when: Vec<Condition>,
    pub errno: i32,
}

/// The offset of the first argument in what the kernel shows to a filter; each has eight bytes, the
/// lower half first on every architecture that is supported.
const ARGUMENTS_AT: u32 = 16;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IF_ANY_BIT: u16 = 0x45;

/// Refuses what a rule refuses; the first that matches decides. All else is allowed.
pub(super) fn program(rules: &[Rule]) -> Result<Program, FilterError> {
    let mut program = Program::new();
    for rule in rules {
        let conditions: Vec<Program> = rule.when.iter().map(|one| one.compiled()).collect();
        // Past the conditions comes the refusal, and then the next rule.
        let mut left = conditions.iter().map(Vec::len).sum::<usize>() + 1;
        for (mut steps, condition) in conditions.into_iter().zip(&rule.when) {
            left -= steps.len();
            let next_rule = u8::try_from(left).map_err(|_| FilterError::TooLong)?;
            if let Some(jump) = steps.last_mut() {
                match condition {
                    Condition::Is { .. } | Condition::HasAny { .. } => jump.jf = next_rule,
                    Condition::IsNot { .. } | Condition::MaskedIsNot { .. } => jump.jt = next_rule,
                }
            }
            program.append(&mut steps);
        }
        program.push(give(refusal(rule.errno)));
    }
    program.push(give(ALLOW));
    Ok(program)
}

impl Condition {
    /// Loads the argument and compares it. Where the last instruction jumps to is not known yet.
    fn compiled(self) -> Program {
        let step = |code, k| Instruction { code, jt: 0, jf: 0, k };
        let load = |argument: u8| step(LOAD, ARGUMENTS_AT + 8 * u32::from(argument));
        match self {
            Self::Is { argument, value } | Self::IsNot { argument, value } => {
                vec![load(argument), step(IF_EQUAL, value)]
            }
            Self::HasAny { argument, bits } => vec![load(argument), step(IF_ANY_BIT, bits)],
            Self::MaskedIsNot { argument, mask, value } => {
                vec![load(argument), step(AND, mask), step(IF_EQUAL, value)]
            }
        }
    }
}
