//! Gates synchronise a test with code in a session. The code connects to the gate and blocks until the test
//! opens it. So the test knows where the code is, without a sleep on either side.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};

/// A point in a session's code where the code waits for the test.
#[derive(Debug)]
pub struct Gate {
    path: PathBuf,
    listener: UnixListener,
}

/// Code that waits at a gate. Dropping it also lets the code continue.
#[derive(Debug)]
pub struct AtGate {
    code: UnixStream,
}

impl Gate {
    /// A gate that every session of [`crate::TestNode::create`] can reach.
    pub fn new(name: &str) -> std::io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = gates_dir()?.join(format!("{}-{number}-{name}", std::process::id()));
        // A killed test with the same pid may have left its gate.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        Ok(Self { path, listener })
    }

    /// Python code that waits at this gate. Each run of the code waits again.
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

    /// The path of the gate's socket. A client that connects waits for one byte.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Waits until code reaches the gate. Use [`crate::within`] for a timeout.
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

/// The directory of all gates of this user. It must exist before a session starts that uses it.
pub(crate) fn gates_dir() -> std::io::Result<PathBuf> {
    let path = PathBuf::from(format!("/tmp/wl-gates-{}", rustix::process::geteuid().as_raw()));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    Ok(path)
}

impl AtGate {
    /// Lets the code continue.
    pub async fn open(mut self) -> std::io::Result<()> {
        self.code.write_all(b"!").await
    }
}
