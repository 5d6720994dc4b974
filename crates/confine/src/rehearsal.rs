//! Tests whether this machine lets a process make namespaces and a view: performs the real steps in a child
//! process that then exits.

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use windlass_protocol::policy::UnixSockets;

use crate::enter::{ConfineStep, PrepareError, PreparedPlan, StepError};
use crate::plan::{Internet, Mount, MountAccess, NetworkPlan, Plan, Sockets};

/// Why the rehearsal failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RehearsalError {
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error("{0}")]
    Step(StepError),
    #[error("cannot fork: {0}")]
    Fork(std::io::Error),
    #[error("the trial process ended without a result")]
    Other,
}

/// The first byte of the result if no step failed; otherwise it is the number of the step.
const WORKED: u8 = u8::MAX;

/// Tries every step that the level `full` needs.
pub(crate) fn try_full() -> Result<(), RehearsalError> {
    let prepared = PreparedPlan::new(&plan())?;
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|errno| RehearsalError::Fork(errno.into()))?;
    // SAFETY: the child makes system calls on memory that was prepared before the fork, and exits.
    match unsafe { fork() }.map_err(|errno| RehearsalError::Fork(errno.into()))? {
        ForkResult::Child => {
            let mut result = [WORKED; 5];
            if let Err(failed) = prepared.make_namespaces().and_then(|()| in_namespaces(&prepared))
            {
                result[0] = failed.step as u8;
                result[1..].copy_from_slice(&failed.errno.to_ne_bytes());
            }
            let _ = rustix::io::write(&write, &result);
            // SAFETY: exits without running any code of the caller.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(write);
            let mut result = [0u8; 5];
            let read = rustix::io::read(&read, &mut result);
            // Another thread may reap the child first, so only the result from the pipe counts.
            let _ = waitpid(child, None);
            match read {
                Ok(5) if result[0] == WORKED => Ok(()),
                Ok(5) => Err(parse(result)),
                _ => Err(RehearsalError::Other),
            }
        }
    }
}

fn parse(result: [u8; 5]) -> RehearsalError {
    let errno = i32::from_ne_bytes([result[1], result[2], result[3], result[4]]);
    match ConfineStep::from_number(result[0]) {
        Some(step) => RehearsalError::Step(StepError { step, errno, index: 0 }),
        None => RehearsalError::Other,
    }
}

/// Performs the other steps in a child, which is the first process of the new pid namespace.
fn in_namespaces(prepared: &PreparedPlan) -> Result<(), StepError> {
    let failed = |errno| StepError { step: ConfineStep::Fork, errno, index: 0 };
    // SAFETY: as above.
    match unsafe { fork() } {
        Err(errno) => Err(failed(errno as i32)),
        Ok(ForkResult::Child) => {
            let code = match prepared.confine() {
                Ok(_) => 0,
                Err(at) => 1 + at.step as i32,
            };
            // SAFETY: exits without running any code of the caller.
            unsafe { libc::_exit(code) }
        }
        Ok(ForkResult::Parent { child }) => match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, 0)) => Ok(()),
            Ok(WaitStatus::Exited(_, code)) => {
                let step = u8::try_from(code - 1).ok().and_then(ConfineStep::from_number);
                Err(StepError {
                    step: step.unwrap_or(ConfineStep::Fork),
                    errno: libc::EPERM,
                    index: 0,
                })
            }
            _ => Err(failed(libc::ECHILD)),
        },
    }
}

/// A plan with every step that a machine can refuse. It does not depend on a session.
fn plan() -> Plan {
    Plan {
        isolation: windlass_protocol::confinement::Isolation::Full,
        network: NetworkPlan::Own,
        view: vec![
            Mount::Machine { access: MountAccess::Read },
            Mount::Private { path: "/tmp".into(), bytes: Some(1 << 20), mode: 0o1777 },
            Mount::Processes,
            Mount::Devices { shm_bytes: Some(1 << 20) },
        ],
        landlock: None,
        sockets: Some(Sockets { unix: UnixSockets::Local, internet: Internet::Own }),
        rlimits: Vec::new(),
        canaries: Vec::new(),
        controls: Vec::new(),
        required: Vec::new(),
        own_uid: None,
    }
}
