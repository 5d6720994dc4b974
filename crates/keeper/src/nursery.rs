//! The nursery: the one process of a node that keepers and zygotes are forked from. It holds nothing
//! of theirs: when it ends, keepers stay and zygotes go.
//!
//! One thread, one poll loop over the socket to the node and signals. A keeper is a fork that runs no
//! other program, so whatever this process has touched is shared by all of them, and what it has
//! open is closed in each.

pub(crate) mod mail;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::stdio;
use windlass_procs::nursery::{Forked, fork_child, keep_rights_over_exec, own_user_namespace};
use windlass_procs::{Wanted, reap_all};
use windlass_protocol::link::Hold;
use windlass_protocol::nursery::{FromNursery, ToNursery};

use self::mail::{Mail, Received};
use crate::complaint::complain;
use crate::signals::Signals;
use crate::{Kept, keep};

/// How a keeper's first process exits when all went well.
const WELL: &str = "exit code 0";

/// The exit code of a zygote whose program cannot be run.
const NO_PROGRAM: i32 = 127;

/// Why there is no nursery.
#[derive(Debug, thiserror::Error)]
enum NurseryError {
    #[error("cannot {act}: {cause}")]
    Setup { act: &'static str, cause: io::Error },
    #[error("the node cannot be heard: {0}")]
    Hear(io::Error),
    #[error("the node cannot be answered: {0}")]
    Answer(io::Error),
}

/// Runs the nursery whose socket is standard input, until the node closes it.
pub fn run_nursery() -> ExitCode {
    match Nursery::new().and_then(Nursery::serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("nursery: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Nursery {
    node: Mail,
    signals: Signals,
    rights: Rights,
    /// By process id, what is to be said of its end. No more than the node has asked for.
    children: HashMap<u32, Child>,
}

/// Whose rights children need to make namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rights {
    /// They are root's, or each sees for itself.
    Inherited,
    /// They are those of the nursery's own user namespace.
    OfOwnNamespace,
}

#[derive(Debug, Clone, Copy)]
struct Child {
    id: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Keeper,
    Zygote,
}

impl Nursery {
    fn new() -> Result<Self, NurseryError> {
        let setup = |act| move |cause: io::Error| NurseryError::Setup { act, cause };
        // No terminal's hang-up or Ctrl-C reaches it. It fails where we lead a session already.
        let _ = rustix::process::setsid();
        let socket = take_socket().map_err(setup("take the socket from standard input"))?;
        let signals =
            Signals::take(Hold::Subreaper).map_err(|errno| setup("take signals")(errno.into()))?;
        let rights = if rustix::process::geteuid().is_root() || own_user_namespace().is_err() {
            Rights::Inherited
        } else {
            Rights::OfOwnNamespace
        };
        Ok(Self { node: Mail::new(socket), signals, rights, children: HashMap::new() })
    }

    fn serve(mut self) -> Result<(), NurseryError> {
        loop {
            let mut asked = [
                PollFd::from_borrowed_fd(self.node.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
            ];
            match poll(&mut asked, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(NurseryError::Hear(errno.into())),
            }
            let [node, signals] = asked.map(|one| !one.revents().is_empty());
            if signals {
                let heard = self.signals.hear();
                if heard.stop {
                    return Ok(());
                }
                if heard.child {
                    self.reap();
                }
            }
            if node {
                match self.node.receive().map_err(NurseryError::Hear)? {
                    Received::Nothing => {}
                    Received::Closed => return Ok(()),
                    Received::Asked { word, descriptors } => self.answer(&word, descriptors)?,
                }
            }
        }
    }

    fn answer(&mut self, word: &ToNursery, given: Vec<OwnedFd>) -> Result<(), NurseryError> {
        let id = word.id();
        let started = self.start(word, &given);
        // A listening socket that stayed open here would look alive without its keeper.
        drop(given);
        match started {
            Ok((kind, forked)) => {
                self.children.insert(forked.pid, Child { id, kind });
                let started = FromNursery::Started { id, pid: forked.pid };
                self.node.say(&started, &[forked.handle.as_fd()])
            }
            Err(error) => self.node.say(&FromNursery::Failed { id, why: error.to_string() }, &[]),
        }
        .map_err(NurseryError::Answer)
    }

    fn start(&self, word: &ToNursery, given: &[OwnedFd]) -> io::Result<(Kind, Forked)> {
        match (word, given) {
            (ToNursery::Keeper { hold, .. }, [listener, log]) => {
                let wanted = Wanted::parse(hold)
                    .ok_or_else(|| io::Error::other("keepers do not hold in this way"))?;
                let places = [listener.as_fd(), stdio::stdout(), log.as_fd()];
                let forked = fork_child(&places, || match keep(wanted) {
                    Kept::ToItsEnd => 0,
                    Kept::NotBegun => 1,
                })?;
                Ok((Kind::Keeper, forked))
            }
            (ToNursery::Zygote { argv, env, cwd, .. }, [control, log]) => {
                let (program, arguments) =
                    argv.split_first().ok_or_else(|| io::Error::other("no program is named"))?;
                let mut command = Command::new(program);
                command.args(arguments).env_clear().current_dir(OsStr::new(cwd));
                command.envs(env.iter().map(|(name, value)| (name, value)));
                let (parent, rights) = (getpid(), self.rights);
                let null = stdio::stdout();
                // In this order they are what `ZYGOTE_CONTROL` says.
                let places = [stdio::stdin(), null, log.as_fd(), control.as_fd()];
                let forked = fork_child(&places, || become_zygote(&mut command, parent, rights))?;
                Ok((Kind::Zygote, forked))
            }
            _ => Err(io::Error::other("the descriptors are not those that were to come with it")),
        }
    }

    fn reap(&mut self) {
        for (pid, how) in reap_all().ended {
            let Some(Child { id, kind }) = self.children.remove(&pid) else { continue };
            if kind == Kind::Zygote || how != WELL {
                self.node.mention(&FromNursery::Ended { id, how });
            }
        }
    }
}

/// Goes on as the zygote's program, which ends with the nursery.
fn become_zygote(command: &mut Command, parent: Pid, rights: Rights) -> i32 {
    let held = set_parent_process_death_signal(Some(Signal::KILL));
    if held.is_err() || getppid() != Some(parent) {
        return NO_PROGRAM;
    }
    if rights == Rights::OfOwnNamespace
        && let Err(error) = keep_rights_over_exec()
    {
        complain!("zygote: it may not enter keepers' namespaces: {error}");
    }
    let error = command.exec();
    complain!("zygote: cannot run {}: {error}", command.get_program().display());
    NO_PROGRAM
}

/// Standard input becomes ours alone, and `/dev/null` takes its place.
fn take_socket() -> io::Result<OwnedFd> {
    let socket = rustix::io::fcntl_dupfd_cloexec(stdio::stdin(), 3)?;
    let null = std::fs::File::open("/dev/null")?;
    stdio::dup2_stdin(&null)?;
    Ok(socket)
}
