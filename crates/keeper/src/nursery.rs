//! The nursery: the process of a node from which keepers and zygotes are forked. It holds none of their
//! state. When the nursery ends, keepers live on and zygotes end.
//!
//! The nursery has one thread and one poll loop over the socket to the node and signals. A keeper is a fork
//! that runs no other program. So keepers share the memory pages of the nursery, and each keeper closes the
//! nursery's descriptors.

pub(crate) mod socket;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::stdio;
use windlass_procs::nursery::{ForkedChild, fork_child, keep_rights_over_exec, own_user_namespace};
use windlass_procs::{HoldMode, reap_all};
use windlass_protocol::link::Hold;
use windlass_protocol::nursery::{FromNursery, ToNursery};

use self::socket::{NurserySocket, Received};
use crate::complaint::complain;
use crate::signals::Signals;
use crate::{KeeperExit, keep};

/// How [`reap_all`] describes a keeper's first process that succeeded.
const EXIT_OK: &str = "exit code 0";

/// The exit code of a zygote whose program cannot be run.
const NO_PROGRAM: i32 = 127;

/// Why the nursery ends.
#[derive(Debug, thiserror::Error)]
enum NurseryServerError {
    #[error("cannot {act}: {cause}")]
    Setup { act: &'static str, cause: io::Error },
    #[error("cannot receive a request of the node: {0}")]
    Hear(io::Error),
    #[error("cannot send an answer to the node: {0}")]
    Answer(io::Error),
}

/// Runs the nursery whose socket is standard input, until the node closes it.
pub fn run_nursery() -> ExitCode {
    match NurseryServer::new().and_then(NurseryServer::serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("nursery: {error}");
            ExitCode::FAILURE
        }
    }
}

struct NurseryServer {
    node: NurserySocket,
    signals: Signals,
    rights: Rights,
    /// By process id. The node's requests bound their number.
    children: HashMap<u32, TrackedChild>,
}

/// Where children get the capabilities to make namespaces from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rights {
    /// The nursery is root, or each child makes its own user namespace.
    Inherited,
    /// The nursery has its own user namespace with these capabilities.
    OfOwnNamespace,
}

#[derive(Debug, Clone, Copy)]
struct TrackedChild {
    id: u64,
    kind: ChildKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChildKind {
    Keeper,
    Zygote,
}

impl NurseryServer {
    fn new() -> Result<Self, NurseryServerError> {
        let setup = |act| move |cause: io::Error| NurseryServerError::Setup { act, cause };
        // The nursery gets no hang-up or Ctrl-C of a terminal. The call fails if this process already leads a
        // process session, which is fine.
        let _ = rustix::process::setsid();
        let socket = take_socket().map_err(setup("take the socket from standard input"))?;
        let signals =
            Signals::take(Hold::Subreaper).map_err(|errno| setup("take signals")(errno.into()))?;
        let rights = if rustix::process::geteuid().is_root() || own_user_namespace().is_err() {
            Rights::Inherited
        } else {
            Rights::OfOwnNamespace
        };
        Ok(Self { node: NurserySocket::new(socket), signals, rights, children: HashMap::new() })
    }

    fn serve(mut self) -> Result<(), NurseryServerError> {
        loop {
            let mut asked = [
                PollFd::from_borrowed_fd(self.node.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            ];
            match poll(&mut asked, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(NurseryServerError::Hear(errno.into())),
            }
            let [node, signals] = asked.map(|one| !one.revents().is_empty());
            if signals {
                let received_signals = self.signals.read();
                if received_signals.stop {
                    return Ok(());
                }
                if received_signals.child {
                    self.reap();
                }
            }
            if node {
                match self.node.receive().map_err(NurseryServerError::Hear)? {
                    Received::Nothing => {}
                    Received::Closed => return Ok(()),
                    Received::Request { request, descriptors } => {
                        self.answer(&request, descriptors)?
                    }
                }
            }
        }
    }

    fn answer(
        &mut self,
        request: &ToNursery,
        received: Vec<OwnedFd>,
    ) -> Result<(), NurseryServerError> {
        let id = request.id();
        let started = self.start(request, &received);
        // If a keeper's listening socket stayed open here, the keeper would look alive after its end.
        drop(received);
        match started {
            Ok((kind, forked)) => {
                self.children.insert(forked.pid, TrackedChild { id, kind });
                let started = FromNursery::Started { id, pid: forked.pid };
                self.node.say(&started, &[forked.handle.as_fd()])
            }
            Err(error) => self.node.say(&FromNursery::Failed { id, why: error.to_string() }, &[]),
        }
        .map_err(NurseryServerError::Answer)
    }

    fn start(
        &self,
        request: &ToNursery,
        received: &[OwnedFd],
    ) -> io::Result<(ChildKind, ForkedChild)> {
        match (request, received) {
            (ToNursery::Keeper { hold, .. }, [listener, log]) => {
                let mode = HoldMode::parse(hold)
                    .ok_or_else(|| io::Error::other(format!("unknown hold mode {hold:?}")))?;
                let descriptors = [listener.as_fd(), stdio::stdout(), log.as_fd()];
                let forked = fork_child(&descriptors, || match keep(mode) {
                    KeeperExit::Done => 0,
                    KeeperExit::NotStarted => 1,
                })?;
                Ok((ChildKind::Keeper, forked))
            }
            (ToNursery::Zygote { argv, env, cwd, .. }, [control, log]) => {
                let (program, arguments) =
                    argv.split_first().ok_or_else(|| io::Error::other("no program is named"))?;
                let mut command = Command::new(program);
                command.args(arguments).env_clear().current_dir(OsStr::new(cwd));
                command.envs(env.iter().map(|(name, value)| (name, value)));
                let (parent, rights) = (getpid(), self.rights);
                let null = stdio::stdout();
                // The order gives the control socket the number `ZYGOTE_CONTROL`.
                let descriptors = [stdio::stdin(), null, log.as_fd(), control.as_fd()];
                let forked =
                    fork_child(&descriptors, || become_zygote(&mut command, parent, rights))?;
                Ok((ChildKind::Zygote, forked))
            }
            _ => Err(io::Error::other("the request came with a wrong number of descriptors")),
        }
    }

    fn reap(&mut self) {
        for (pid, how) in reap_all().ended {
            let Some(TrackedChild { id, kind }) = self.children.remove(&pid) else { continue };
            if kind == ChildKind::Zygote || how != EXIT_OK {
                self.node.mention(&FromNursery::Ended { id, how });
            }
        }
    }
}

/// Runs the zygote's program in this process. The kernel kills it when the nursery ends.
fn become_zygote(command: &mut Command, parent: Pid, rights: Rights) -> i32 {
    let held = set_parent_process_death_signal(Some(Signal::KILL));
    if held.is_err() || getppid() != Some(parent) {
        return NO_PROGRAM;
    }
    if rights == Rights::OfOwnNamespace
        && let Err(error) = keep_rights_over_exec()
    {
        complain!("zygote: cannot keep the capabilities to enter keepers' namespaces: {error}");
    }
    let error = command.exec();
    complain!("zygote: cannot run {}: {error}", command.get_program().display());
    NO_PROGRAM
}

/// Moves the socket from standard input to a descriptor that is closed on exec. `/dev/null` becomes standard
/// input.
fn take_socket() -> io::Result<OwnedFd> {
    let socket = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), 3)?;
    let null = std::fs::File::open("/dev/null")?;
    stdio::dup2_stdin(&null)?;
    Ok(socket)
}
