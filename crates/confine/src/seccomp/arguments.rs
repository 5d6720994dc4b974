//! The part of a filter that checks the arguments of a call. A rule is a list of conditions, and the error of
//! the call if all conditions hold.
//!
//! The filter compares only the lower 32 bits of an argument. Every argument in a rule is an `int`, an
//! `unsigned int` or shorter, and the kernel ignores the upper bits of such an argument.

use super::search::{ALLOW, FilterProgram, IF_EQUAL, give, refusal};
use super::{FilterError, Instruction};

/// A condition on one argument. Arguments are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArgumentCondition {
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
    /// These bits of the argument do not have this value.
    MaskedIsNot {
        argument: u8,
        mask: u32,
        value: u32,
    },
}

/// A call fails with `errno` if all conditions hold. Without conditions it always fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilterRule {
    pub when: Vec<ArgumentCondition>,
    pub errno: i32,
}

/// The offset of the first argument in `struct seccomp_data`. Each argument has eight bytes. The lower half
/// comes first on every supported architecture.
const ARGUMENTS_AT: u32 = 16;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const IF_ANY_BIT: u16 = 0x45;

/// Compiles the rules of one call. The first rule whose conditions hold decides; if there is none, the call
/// is allowed.
pub(super) fn program(rules: &[FilterRule]) -> Result<FilterProgram, FilterError> {
    let mut program = FilterProgram::new();
    for rule in rules {
        let conditions: Vec<FilterProgram> = rule.when.iter().map(|one| one.compiled()).collect();
        // The refusal follows the conditions, and then the next rule.
        let mut left = conditions.iter().map(Vec::len).sum::<usize>() + 1;
        for (mut steps, condition) in conditions.into_iter().zip(&rule.when) {
            left -= steps.len();
            let next_rule = u8::try_from(left).map_err(|_| FilterError::TooLong)?;
            if let Some(jump) = steps.last_mut() {
                match condition {
                    ArgumentCondition::Is { .. } | ArgumentCondition::HasAny { .. } => {
                        jump.jf = next_rule
                    }
                    ArgumentCondition::IsNot { .. } | ArgumentCondition::MaskedIsNot { .. } => {
                        jump.jt = next_rule
                    }
                }
            }
            program.append(&mut steps);
        }
        program.push(give(refusal(rule.errno)));
    }
    program.push(give(ALLOW));
    Ok(program)
}

impl ArgumentCondition {
    /// Loads the argument and compares it. The caller fills in the jump target of the last instruction.
    fn compiled(self) -> FilterProgram {
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
