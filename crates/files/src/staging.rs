//! Files on their way into a workspace, on the disk they are to be on. They have no name while they are written
//! where the file system can do that, so a node that is killed leaves nothing; else, and until they are in their
//! places, they have names that nobody else uses. They are gone when their staging is dropped, whyever that is.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, linkat, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::workspace::beneath;
use super::{FileError, FilePath, Identity, Workspace};

/// How all our names begin, in every workspace.
const PREFIX: &str = ".windlass-";

/// Random bytes in a name: 2^96 never meet.
const RANDOM_BYTES: usize = 12;

/// Whether a name is one that only a staging has.
pub fn is_staged(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|rest| {
        rest.len() == 2 * RANDOM_BYTES && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Where files are staged. Removing them can take long, so who drops it on the node's thread has
/// that done on the pool.
#[derive(Debug)]
pub(super) struct Staging(Option<Names>);

/// The names of one staging; removed from the disk when dropped.
#[derive(Debug)]
struct Names {
    directory: OwnedFd,
    names: Vec<String>,
    /// Where the directory itself is, and its name there, if it was made for this.
    own: Option<(OwnedFd, String)>,
}

/// A file while it is written.
#[derive(Debug)]
pub(super) struct Writing {
    file: File,
    /// The name that it has, or gets when all of it is there.
    name: String,
    is_named: bool,
    pub bytes: u64,
}

/// A file that is written, by its name in the staging.
#[derive(Debug)]
pub(super) struct Staged {
    pub name: String,
    pub bytes: u64,
    identity: Identity,
}

impl Staging {
    /// In the directory that the file will be in, or the nearest that is there.
    pub fn beside(workspace: &Workspace, path: &FilePath) -> Result<Self, FileError> {
        let directory = workspace.nearest_directory(path)?;
        Ok(Self(Some(Names { directory, names: Vec::new(), own: None })))
    }

    /// In a directory of its own in the workspace.
    pub fn apart(workspace: &Workspace) -> Result<Self, FileError> {
        let failed = |cause: Errno| FileError::of("", cause);
        let above = workspace.directory(&FilePath::directory("")?)?;
        let name = fresh_name().map_err(failed)?;
        mkdirat(&above, &name, Mode::from_raw_mode(0o700)).map_err(failed)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match beneath(&above, &name, flags, Mode::empty()) {
            Ok(directory) => {
                Ok(Self(Some(Names { directory, names: Vec::new(), own: Some((above, name)) })))
            }
            Err(cause) => {
                let _ = unlinkat(&above, &name, AtFlags::REMOVEDIR);
                Err(failed(cause))
            }
        }
    }

    pub fn directory(&self) -> BorrowedFd<'_> {
        self.names().directory.as_fd()
    }

    /// A name that nothing has and that will be removed.
    pub fn fresh(&mut self) -> rustix::io::Result<String> {
        let name = fresh_name()?;
        self.names_mut().names.push(name.clone());
        Ok(name)
    }

    /// Begins a file.
    pub fn begin(&mut self) -> rustix::io::Result<Writing> {
        let name = self.fresh()?;
        let mode = Mode::from_raw_mode(0o666);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        if let Ok(file) = openat(self.directory(), ".", flags | OFlags::TMPFILE, mode) {
            return Ok(Writing { file: file.into(), name, is_named: false, bytes: 0 });
        }
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = openat(self.directory(), &name, flags, mode)?;
        Ok(Writing { file: file.into(), name, is_named: true, bytes: 0 })
    }

    /// All of the file is written.
    pub fn finish(&self, writing: Writing) -> rustix::io::Result<Staged> {
        let Writing { file, name, is_named, bytes } = writing;
        let identity = Identity::of(&fstat(&file)?);
        if !is_named {
            let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, unnamed, self.directory(), &name, AtFlags::SYMLINK_FOLLOW)?;
        }
        Ok(Staged { name, bytes, identity })
    }

    /// A staged file, if it is still the one that was written.
    pub fn open(&self, staged: &Staged) -> rustix::io::Result<OwnedFd> {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = beneath(self.directory(), &staged.name, flags, Mode::empty())?;
        if Identity::of(&fstat(&file)?) == staged.identity { Ok(file) } else { Err(Errno::NOENT) }
    }

    /// Removes what is left, here and now.
    pub fn clear(mut self) {
        drop(self.0.take());
    }

    fn names(&self) -> &Names {
        self.0.as_ref().expect("only clear and drop take it, and nothing comes after them")
    }

    fn names_mut(&mut self) -> &mut Names {
        self.0.as_mut().expect("only clear and drop take it, and nothing comes after them")
    }
}

impl Writing {
    pub fn write(&mut self, bytes: &Bytes) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let Some(names) = self.0.take() else { return };
        // If it cannot be run there any more, it is dropped all the same, and so done.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(names));
        }
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        for name in &self.names {
            // Most are gone: they are in their places.
            let _ = unlinkat(&self.directory, name, AtFlags::empty());
        }
        if let Some((above, name)) = &self.own {
            let _ = unlinkat(above, name, AtFlags::REMOVEDIR);
        }
    }
}

fn fresh_name() -> rustix::io::Result<String> {
    let mut random = [0u8; RANDOM_BYTES];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{PREFIX}{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_are_known_as_ours() {
        assert!(is_staged(&fresh_name().unwrap()));
        for other in [".windlass-", ".windlass-notes", "windlass-000000000000000000000000", "a"] {
            assert!(!is_staged(other), "{other}");
        }
    }
}
