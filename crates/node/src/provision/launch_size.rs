//! Checks the size of a launch (plan and environment) before the node starts anything for the session. The
//! client gets an error with the size and the limit.

use std::collections::BTreeMap;

use rustix::process::{Resource, getrlimit};
use windlass_protocol::ErrorCode;
use windlass_protocol::limits::{ENVIRONMENT_BYTES_MAX, LAUNCH_BYTES_MAX, VARIABLE_BYTES_MAX};
use windlass_protocol::text::bounded;

use crate::failure::Failure;

/// Reserved for the rest of a launch: ids, times, limits, and a few dozen paths.
const REST_BYTES: usize = 256 * 1024;

/// In JSON text a byte of the environment takes at most [`ESCAPED`] bytes, and a byte of the plan, which is
/// JSON already, at most [`QUOTED`].
const ESCAPED: usize = 6;
const QUOTED: usize = 2;

/// The kernel also counts a pointer for each variable.
const POINTER_BYTES: usize = size_of::<usize>();

/// The kernel accepts this many bytes of arguments and environment under any stack limit.
const ALWAYS_TAKEN_BYTES: usize = 128 * 1024;

/// Arguments and environment may take one part in this many of the stack limit.
const STACK_SHARE: u64 = 4;

/// Maximum bytes of a variable's name in a message.
const NAME_SHOWN_BYTES: usize = 100;

/// Checks the environment and the plan of a launch.
pub(super) fn check(env: &BTreeMap<String, String>, plan: &str) -> Result<(), Failure> {
    let bytes = environment_bytes(env)?;
    if plan.len() * QUOTED + bytes * ESCAPED + REST_BYTES <= LAUNCH_BYTES_MAX {
        return Ok(());
    }
    let launch = json_bytes(&plan) + json_bytes(env) + REST_BYTES;
    if launch <= LAUNCH_BYTES_MAX {
        return Ok(());
    }
    let (plan, limit) = (plan.len(), LAUNCH_BYTES_MAX);
    Err(too_large(format!(
        "cannot start the session: its plan has {plan} bytes, its environment {bytes}, and both in one \
         message {launch}, over the limit of {limit}"
    )))
}

/// The size of the environment as `execve` counts it.
fn environment_bytes(env: &BTreeMap<String, String>) -> Result<usize, Failure> {
    let mut all = 0;
    for (name, value) in env {
        let shown = bounded(name, NAME_SHOWN_BYTES);
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            let message = format!(
                "the environment variable {shown:?} has an empty name, a \"=\" in its name, or a zero \
                 byte"
            );
            return Err(Failure::new(ErrorCode::BadRequest, message));
        }
        // Plus the `=` and the zero byte at the end.
        let bytes = name.len() + value.len() + 2;
        if bytes > VARIABLE_BYTES_MAX {
            return Err(too_large(format!(
                "the environment variable {shown:?} has {bytes} bytes, over the limit of \
                 {VARIABLE_BYTES_MAX}"
            )));
        }
        all += bytes;
    }
    let limit = ENVIRONMENT_BYTES_MAX.min(taken_by_kernel(env.len()));
    if all > limit {
        let message = format!("the environment has {all} bytes, over the limit of {limit}");
        return Err(too_large(message));
    }
    Ok(all)
}

/// The largest environment of `variables` variables with which the kernel still runs a program.
fn taken_by_kernel(variables: usize) -> usize {
    let share = getrlimit(Resource::Stack).current.map_or(u64::MAX, |stack| stack / STACK_SHARE);
    let share = usize::try_from(share).unwrap_or(usize::MAX).max(ALWAYS_TAKEN_BYTES);
    // The pointers, the program's path, its arguments, and what the keeper adds.
    share.saturating_sub(variables * POINTER_BYTES + ARGUMENT_BYTES)
}

/// Reserved for the worker's arguments.
const ARGUMENT_BYTES: usize = 16 * 1024;

fn json_bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX / 4, |text| text.len())
}

fn too_large(message: String) -> Failure {
    Failure::new(ErrorCode::MessageTooLarge, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(values: &[(&str, usize)]) -> BTreeMap<String, String> {
        values.iter().map(|(name, bytes)| ((*name).to_owned(), "v".repeat(*bytes))).collect()
    }

    fn refused(env: &BTreeMap<String, String>, plan_bytes: usize) -> String {
        let failure = check(env, &"p".repeat(plan_bytes)).unwrap_err();
        assert_eq!(failure.code, ErrorCode::MessageTooLarge);
        failure.message
    }

    #[test]
    fn a_variable_may_be_as_long_as_the_kernel_allows() {
        // `BIG=` and the zero byte count too.
        assert_eq!(check(&env(&[("BIG", VARIABLE_BYTES_MAX - 5)]), ""), Ok(()));
        let message = refused(&env(&[("BIG", VARIABLE_BYTES_MAX - 4)]), 0);
        assert!(message.contains("\"BIG\" has 131073 bytes"), "{message}");
    }

    #[test]
    fn an_environment_has_a_limit_as_a_whole() {
        let names: Vec<String> = (0..16).map(|number| format!("V{number}")).collect();
        let of = |count: usize| {
            env(&names.iter().take(count).map(|name| (&**name, 100_000)).collect::<Vec<_>>())
        };
        assert_eq!(check(&of(11), ""), Ok(()));
        let message = refused(&of(16), 0);
        assert!(message.contains("the environment has 16000"), "{message}");
    }

    #[test]
    fn a_plan_has_a_limit_and_the_message_names_it() {
        assert_eq!(check(&env(&[]), &"p".repeat(LAUNCH_BYTES_MAX - REST_BYTES - 10)), Ok(()));
        let message = refused(&env(&[]), LAUNCH_BYTES_MAX);
        assert!(message.contains("its plan has 8388608 bytes"), "{message}");
    }

    #[test]
    fn a_malformed_variable_is_a_bad_request() {
        for (name, value) in [("", "v"), ("A=B", "v"), ("A\0", "v"), ("A", "v\0")] {
            let env = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            assert_eq!(check(&env, "").unwrap_err().code, ErrorCode::BadRequest, "{name:?}");
        }
    }
}
