//! One zygote: how the node starts it, reads its ready message, connects keepers to it, and ends it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, pidfd_send_signal};
use windlass_protocol::environments::{ZygoteInfo, ZygoteState};

use super::file_stamps::FileStamps;
use crate::keepers::Keepers;
use crate::nursery::NurseryChild;
use crate::passing;
use crate::trust::{Advice, CodeDirs, Distrust, Trust};
use crate::workers::ZygoteRecipe;

/// How long the imports of a preload list may take.
const READY_WAIT: Duration = Duration::from_secs(120);

/// The message that carries the list of roots that sessions can write.
const ROOTS: &[u8] = b"R";

/// The message that carries a keeper's connection.
const CONNECTION: &[u8] = b"C";

/// The longest ready message of a zygote.
const READY_BYTES_MAX: usize = 64 * 1024;

/// A zygote that is ready. Dropping this ends the zygote.
#[derive(Debug)]
pub(crate) struct Zygote {
    /// Unique among the zygotes and pooled workers of this node.
    number: u64,
    process: NurseryChild,
    /// The node's end of the socket to the zygote, which only the node holds. The kernel closes the
    /// other end when the zygote ends. Requests reach the zygote only through here.
    control: OwnedFd,
    env: BTreeMap<String, String>,
    reads_at_start: fn(&str) -> bool,
    missing: Vec<String>,
    stamps: FileStamps,
    /// The directories from which the zygote loaded its code.
    trusted: CodeDirs,
    /// The generation of writable roots at the last check. None of those roots could change the
    /// directories in `trusted`.
    generation: AtomicU64,
}

/// Why a zygote cannot be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum ZygoteError {
    #[error("{act}: {cause}")]
    Start { act: &'static str, cause: io::Error },
    #[error(
        "the zygote ended before it was ready; keepers.log in the state directory has its last output"
    )]
    Ended,
    #[error("the zygote was not ready after {READY_WAIT:?}; shorten its preload list")]
    TooSlow,
    #[error("{0}")]
    Untrusted(String),
}

impl Zygote {
    /// Starts a zygote and waits until it is ready. Blocks for as long as its imports take.
    pub(super) fn start(
        keepers: &Keepers,
        trust: &Trust,
        recipe: ZygoteRecipe,
        number: u64,
    ) -> Result<Self, ZygoteError> {
        let failed = |act| move |cause| ZygoteError::Start { act, cause };
        let log = keepers.log().map_err(failed("open the log"))?;
        let ZygoteRecipe { argv, env, reads_at_start, sources, trusted } = recipe;
        let generation = AtomicU64::new(trust.generation());
        // Until the zygote has loaded its modules, no session may start that can write their directories.
        let _in_use = trust.hold(&trusted).map_err(|why| distrusted(&why))?;
        let started = keepers.nursery.zygote(&argv, &env, Path::new("/"), log.as_fd());
        let (process, control) = started.map_err(failed("start the zygote"))?;
        let (stamps, missing) = (FileStamps::of(sources), Vec::new());
        let mut zygote = Self {
            number,
            process,
            control,
            env,
            reads_at_start,
            missing,
            stamps,
            trusted,
            generation,
        };
        zygote.send_roots(trust).map_err(failed("send the zygote the writable roots"))?;
        zygote.wait_ready()?;
        trust.check(&zygote.trusted).map_err(|why| distrusted(&why))?;
        Ok(zygote)
    }

    /// Sends the zygote the roots that sessions can write, so that it refuses modules from there.
    fn send_roots(&self, trust: &Trust) -> io::Result<()> {
        let text = match trust.roots() {
            Some(roots) => {
                let roots = roots.iter().map(|root| root.as_os_str().as_encoded_bytes());
                [&b"known"[..]].into_iter().chain(roots).collect::<Vec<_>>().join(&0)
            }
            None => b"unknown".to_vec(),
        };
        let mut file = File::from(memfd_create("windlass-roots", MemfdFlags::CLOEXEC)?);
        file.write_all(&text)?;
        passing::send(&self.control, ROOTS, file.as_fd()).map(drop)
    }

    /// A connection over which a process can ask the zygote for one worker. The zygote serves every process
    /// that holds the connection, so the node passes it only to a keeper.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        passing::send(&self.control, CONNECTION, theirs.as_fd())?;
        Ok(ours)
    }

    fn wait_ready(&mut self) -> Result<(), ZygoteError> {
        let timeout = Timespec::try_from(READY_WAIT).map_err(|_| ZygoteError::TooSlow)?;
        let polled = poll(&mut [PollFd::new(&self.control, PollFlags::IN)], Some(&timeout));
        if !matches!(polled, Ok(1..)) {
            return Err(ZygoteError::TooSlow);
        }
        let mut message = vec![0; READY_BYTES_MAX];
        let read = rustix::io::read(&self.control, &mut message[..]).unwrap_or(0);
        let text = String::from_utf8_lossy(&message[..read]);
        let mut lines = text.lines();
        if lines.next() != Some("ready") {
            return Err(ZygoteError::Ended);
        }
        for line in lines {
            if let Some(missing) = line.strip_prefix("missing ") {
                self.missing.push(missing.to_owned());
            } else if let Some(path) = line.strip_prefix("path ") {
                self.stamps.add(path.into());
                // A directory of `sys.path` that the node did not know before the zygote ran.
                self.trusted.add_named(Path::new(path)).map_err(|why| distrusted(&why.into()))?;
            }
        }
        Ok(())
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// A socket that is readable when the zygote has ended.
    pub fn end(&self) -> io::Result<UnixStream> {
        Ok(self.control.try_clone()?.into())
    }

    /// Whether a session with these environment variables can use the zygote: the variables that an
    /// interpreter reads only when it starts must be the same.
    pub fn fits(&self, env: &BTreeMap<String, String>) -> bool {
        start_alike(&self.env, env, self.reads_at_start)
    }

    /// Checks that no session can write to the directories from which the zygote loaded its code.
    pub fn check_trust(&self, trust: &Trust) -> Result<(), Distrust> {
        let now = trust.generation();
        if self.generation.load(Ordering::Relaxed) != now {
            trust.check(&self.trusted)?;
            self.generation.store(now, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the interpreter and the module directories have not changed since the zygote started.
    pub fn is_current(&self) -> bool {
        self.stamps.are_current()
    }

    pub fn info(&self) -> ZygoteInfo {
        let pid = self.process.pid.as_raw_nonzero().get();
        ZygoteInfo {
            state: ZygoteState::Ready,
            pid: Some(pid.unsigned_abs()),
            pss_kib: pss_kib(pid),
            missing: self.missing.clone(),
            error: None,
        }
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        // This fails if the zygote has ended already, which is fine.
        let _ = pidfd_send_signal(&self.process.handle, Signal::KILL);
    }
}

/// Whether two environments have the same values for the variables that are read at the start.
fn start_alike(
    one: &BTreeMap<String, String>,
    other: &BTreeMap<String, String>,
    reads_at_start: fn(&str) -> bool,
) -> bool {
    let read = |(name, _): &(&String, &String)| reads_at_start(name);
    one.iter().filter(read).eq(other.iter().filter(read))
}

fn distrusted(why: &Distrust) -> ZygoteError {
    ZygoteError::Untrusted(Advice(why).to_string())
}

fn pss_kib(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn variables_that_are_read_at_the_start_must_be_the_same() {
        let zygote = variables(&[("HOME", "/a"), ("PATH", "/bin")]);
        let with = |name, value| {
            let mut all = zygote.clone();
            all.insert(String::from(name), String::from(value));
            all
        };
        let alike = |env: &BTreeMap<String, String>| {
            start_alike(&zygote, env, |name| ["HOME", "SEED"].contains(&name))
        };
        assert!(alike(&with("TOKEN", "1")) && alike(&with("PATH", "/usr/bin")));
        assert!(!alike(&with("SEED", "0")) && !alike(&with("HOME", "/b")));
        assert!(!alike(&variables(&[])));
    }
}
