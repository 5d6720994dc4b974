//! Gates: code in a session says that it has come to a place, and waits there until the test lets
//! it go on. So a test knows what is in flight, without a sleep on either side.

use std::path::{Path, PathBuf};

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
    /// A gate in the directory `place`, which [`crate::TestNode::base`] is good for.
    pub fn new(place: &Path, name: &str) -> std::io::Result<Self> {
        let path = place.join(format!("{name}.gate"));
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

    /// Waits until code stands at the gate. Give it a deadline with [`crate::within`].
    pub async fn reached(&self) -> std::io::Result<AtGate> {
        let (code, _) = self.listener.accept().await?;
        Ok(AtGate { code })
    }
}

impl AtGate {
    /// Lets the code go on.
    pub async fn open(mut self) -> std::io::Result<()> {
        self.code.write_all(b"!").await
    }
}
