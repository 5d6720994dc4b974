//! Trying whether this machine lets a process have namespaces and a view of its own: the real steps,
//! in a process that ends right after.

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use windlass_protocol::policy::UnixSockets;

use crate::enter::{Failed, PrepareError, Prepared, Step};
use crate::plan::{Access, Internet, Mount, NetworkPlan, Plan, Sockets};

/// Why the rehearsal failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RehearsalError {
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error("{0}")]
    Step(Failed),
    #[error("cannot fork: {0}")]
    Fork(std::io::Error),
    #[error("the trial process ended in another way")]
    Other,
}

/// No step failed.
const WORKED: u8 = u8::MAX;

/// Tries everything that the level `full` needs.
pub(crate) fn try_full() -> Result<(), RehearsalError> {
    let prepared = Prepared::new(&plan())?;
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|errno| RehearsalError::Fork(errno.into()))?;
    // SAFETY: the child makes system calls on memory that is laid out, and ends.
    match unsafe { fork() }.map_err(|errno| RehearsalError::Fork(errno.into()))? {
        ForkResult::Child => {
            let mut word = [WORKED; 5];
            if let Err(failed) = prepared.make_namespaces().and_then(|()| in_namespaces(&prepared))
            {
                word[0] = failed.step as u8;
                word[1..].copy_from_slice(&failed.errno.to_ne_bytes());
            }
            let _ = rustix::io::write(&write, &word);
            // SAFETY: ends the process without running anything of the caller's.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(write);
            let mut word = [0u8; 5];
            let read = rustix::io::read(&read, &mut word);
            // Somebody else in this process may reap it first: the word alone counts.
            let _ = waitpid(child, None);
            match read {
                Ok(5) if word[0] == WORKED => Ok(()),
                Ok(5) => Err(heard(word)),
                _ => Err(RehearsalError::Other),
            }
        }
    }
}

fn heard(word: [u8; 5]) -> RehearsalError {
    let errno = i32::from_ne_bytes([word[1], word[2], word[3], word[4]]);
    match Step::from_number(word[0]) {
        Some(step) => RehearsalError::Step(Failed { step, errno, place: 0 }),
        None => RehearsalError::Other,
    }
}

/// The first process of the new pid namespace does the rest.
fn in_namespaces(prepared: &Prepared) -> Result<(), Failed> {
    let failed = |errno| Failed { step: Step::Fork, errno, place: 0 };
    // SAFETY: as above.
    match unsafe { fork() } {
        Err(errno) => Err(failed(errno as i32)),
        Ok(ForkResult::Child) => {
            let code = match prepared.confine() {
                Ok(_) => 0,
                Err(at) => 1 + at.step as i32,
            };
            // SAFETY: ends the process without running anything of the caller's.
            unsafe { libc::_exit(code) }
        }
        Ok(ForkResult::Parent { child }) => match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, 0)) => Ok(()),
            Ok(WaitStatus::Exited(_, code)) => {
                let step = u8::try_from(code - 1).ok().and_then(Step::from_number);
                Err(Failed { step: step.unwrap_or(Step::Fork), errno: libc::EPERM, place: 0 })
            }
            _ => Err(failed(libc::ECHILD)),
        },
    }
}

/// Everything that can be refused, and nothing that depends on a session.
fn plan() -> Plan {
    Plan {
        isolation: windlass_protocol::confinement::Isolation::Full,
        network: NetworkPlan::Own,
        view: vec![
            Mount::Machine { access: Access::Read },
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
    }
}
