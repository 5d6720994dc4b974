//! Gates: code in a session says that it has come to a place, and waits there until the test lets
//! it go on. So a test knows what is in flight, without a sleep on either side.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};

/// A place in a session's code.
#[derive(Debug)]
pub struct Gate {
    path: PathBuf,
    listener: UnixListener,
}

/// Code that stands at a gate. Dropping it lets the code go on too.
#[derive(Debug)]
pub struct AtGate {
    code: UnixStream,
}

impl Gate {
    /// A gate that every session of [`crate::TestNode::create`] can come to.
    pub fn new(name: &str) -> std::io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = gates_dir()?.join(format!("{}-{number}-{name}", std::process::id()));
        let listener = UnixListener::bind(&path)?;
        Ok(Self { path, listener })
    }

    /// The lines of Python that wait at this gate. Every pass is a new wait.
    pub fn python(&self) -> String {
        format!(
            "import socket as _s\n\
             _gate = _s.socket(_s.AF_UNIX)\n\
             _gate.connect({:?})\n\
             _gate.recv(1)\n\
             _gate.close()\n",
            self.path.display().to_string()
        )
    }

    /// Where it is: whoever connects waits for one byte.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Waits until code stands at the gate. Give it a deadline with [`crate::within`].
    pub async fn reached(&self) -> std::io::Result<AtGate> {
        let (code, _) = self.listener.accept().await?;
        Ok(AtGate { code })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Where gates are: one directory of the user's, there before any session that looks into it.
pub(crate) fn gates_dir() -> std::io::Result<PathBuf> {
    let path = PathBuf::from(format!("/tmp/wl-gates-{}", rustix::process::geteuid().as_raw()));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    Ok(path)
}

impl AtGate {
    /// Lets the code go on.
    pub async fn open(mut self) -> std::io::Result<()> {
        self.code.write_all(b"!").await
    }
}
