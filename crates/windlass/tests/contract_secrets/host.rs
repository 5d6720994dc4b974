//! Hosts that speak TLS, with certificates of an authority that the node trusts.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use windlass_testkit::{TestCertificates, python};

const SCRIPT: &str = include_str!("host.py");

/// A host. Dropping it ends its process.
pub struct TlsHost {
    process: Child,
    pub port: u16,
    /// The certificate of the authority.
    pub trusted: PathBuf,
    /// What `/files/` serves.
    pub files: PathBuf,
    log: PathBuf,
    // The last field: removed after the process has ended.
    _dir: TempDir,
}

impl TlsHost {
    /// A host `api.test`, and another that is `evil.test` and `api.test` at another port. One authority vouches for both.
    pub fn pair() -> (Self, Self) {
        let dir = tempfile::tempdir().unwrap();
        let made = TestCertificates::make(dir.path(), &["api.test", "evil.test"]).unwrap();
        let other = Self::start(tempfile::tempdir().unwrap(), &made);
        (Self::start(dir, &made), other)
    }

    fn start(dir: TempDir, certificates: &TestCertificates) -> Self {
        let (log, files) = (dir.path().join("log"), dir.path().join("files"));
        std::fs::create_dir(&files).unwrap();
        std::fs::write(&log, "").unwrap();
        let mut process = Command::new(python())
            .args(["-u", "-c", SCRIPT])
            .args([&certificates.certificate, &certificates.key, &log, &files])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap();
        Self { process, port, trusted: certificates.authority.clone(), files, log, _dir: dir }
    }

    /// The requests so far, a line of JSON each.
    pub fn heard(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub fn files(&self) -> &Path {
        &self.files
    }
}

impl Drop for TlsHost {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
