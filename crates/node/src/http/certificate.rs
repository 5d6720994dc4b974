//! The certificate of the TCP door, which encrypts the door. Its files are read again when they change, so a renewed
//! certificate needs no restart. Never writes a file.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::file_version::FileVersion;
use crate::config::TlsFiles;

/// The files are looked at in a handshake, if the last look is at least this long ago.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum size of a file. A chain of certificates is some kilobytes long.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The protocol inside TLS.
const HTTP_1: &[u8] = b"http/1.1";

/// Permission bits of users other than the owner.
const OTHERS: u32 = 0o077;

/// Why the TCP door cannot be encrypted.
#[derive(Debug, thiserror::Error)]
pub enum DoorCertificateError {
    #[error("cannot read {path}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
    #[error("{path} is not a file of at most {FILE_BYTES_MAX} bytes")]
    NotAFile { path: PathBuf },
    #[error("the key {path} can be read by others (mode {mode:o})")]
    Open { path: PathBuf, mode: u32 },
    #[error("{path} has no certificate in PEM form")]
    NoCertificate { path: PathBuf },
    #[error("{path} has no private key in PEM form, or the key has a password")]
    NoKey { path: PathBuf },
    #[error("the certificate {certificate} cannot be used with the key {key}: {cause}")]
    Unusable { certificate: PathBuf, key: PathBuf, cause: rustls::Error },
}

impl DoorCertificateError {
    /// What a user can do.
    pub fn remedy(&self) -> String {
        match self {
            Self::Io { path, .. } | Self::NotAFile { path } => {
                format!(
                    "name files that the user of the node can read, or correct {}",
                    path.display()
                )
            }
            Self::Open { path, .. } => format!("run: chmod 600 {}", path.display()),
            Self::NoCertificate { .. } => {
                "set `tls_certificate` to the file of the whole chain, with certbot fullchain.pem"
                    .to_owned()
            }
            Self::NoKey { .. } => {
                "set `tls_key` to the file of the key without a password, with certbot privkey.pem"
                    .to_owned()
            }
            Self::Unusable { .. } => {
                "set `tls_certificate` and `tls_key` to the two files of one certificate".to_owned()
            }
        }
    }
}

/// The certificate and the key in the files.
pub(crate) struct DoorCertificate {
    files: TlsFiles,
    current: Mutex<CurrentCertificate>,
}

struct CurrentCertificate {
    config: Arc<ServerConfig>,
    /// The versions of the two files at the last attempt to read them.
    versions: [Option<FileVersion>; 2],
    looked_at: Instant,
}

impl DoorCertificate {
    /// Reads the files.
    pub fn load(files: TlsFiles) -> Result<Self, DoorCertificateError> {
        // The versions first: a file that changes meanwhile is read again.
        let versions = versions(&files);
        let config = read(&files)?;
        let current = CurrentCertificate { config, versions, looked_at: Instant::now() };
        Ok(Self { files, current: Mutex::new(current) })
    }

    /// For the next handshake. Uses the files as they are now, or at most `LOOK_INTERVAL` ago.
    pub fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked_at.elapsed() >= LOOK_INTERVAL {
            current.look(&self.files);
        }
        current.config.clone().into()
    }
}

impl CurrentCertificate {
    /// Reads the files if they have changed. Files that cannot be used change nothing, and are tried again when they
    /// change again: a program that renews a certificate may replace one file before the other.
    fn look(&mut self, files: &TlsFiles) {
        self.looked_at = Instant::now();
        let versions = versions(files);
        if versions == self.versions {
            return;
        }
        self.versions = versions;
        match read(files) {
            Ok(config) => {
                self.config = config;
                tracing::info!("the TCP door uses the new certificate");
            }
            Err(error) => {
                let remedy = error.remedy();
                tracing::warn!(%error, remedy, "the TCP door keeps the certificate that it has");
            }
        }
    }
}

impl fmt::Debug for DoorCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoorCertificate").field("files", &self.files).finish_non_exhaustive()
    }
}

fn versions(files: &TlsFiles) -> [Option<FileVersion>; 2] {
    [&files.certificate, &files.key].map(|path| FileVersion::of(path))
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, DoorCertificateError> {
    let TlsFiles { certificate, key } = files;
    let (text, _) = read_file(certificate)?;
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    let chain =
        chain.ok_or_else(|| DoorCertificateError::NoCertificate { path: certificate.clone() })?;
    let (text, mode) = read_file(key)?;
    if mode & OTHERS != 0 {
        return Err(DoorCertificateError::Open { path: key.clone(), mode });
    }
    // The error of the parser could show a part of the key.
    let private = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| DoorCertificateError::NoKey { path: key.clone() })?;
    let config = server_config(chain, private).map_err(|cause| DoorCertificateError::Unusable {
        certificate: certificate.clone(),
        key: key.clone(),
        cause,
    })?;
    Ok(Arc::new(config))
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    Ok(config)
}

/// The content and the permission bits of a file.
fn read_file(path: &Path) -> Result<(Vec<u8>, u32), DoorCertificateError> {
    let failed = |cause| DoorCertificateError::Io { path: path.to_owned(), cause };
    // Without waiting: the path may lead to a pipe, whose opening would stop the node.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(opened.map_err(|errno| failed(errno.into()))?);
    let known = file.metadata().map_err(failed)?;
    if !known.is_file() || known.len() > FILE_BYTES_MAX {
        return Err(DoorCertificateError::NotAFile { path: path.to_owned() });
    }
    let mut content = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut content).map_err(failed)?;
    Ok((content, known.mode() & 0o777))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Writes a new certificate and its key.
    fn write(files: &TlsFiles) {
        let made = rcgen::generate_simple_self_signed(vec!["door.test".to_owned()]).unwrap();
        fs::write(&files.certificate, made.cert.pem()).unwrap();
        fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn files(dir: &Path) -> TlsFiles {
        TlsFiles { certificate: dir.join("door.pem"), key: dir.join("door.key") }
    }

    #[test]
    fn files_that_cannot_be_used_are_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let refused = || {
            let error = DoorCertificate::load(files.clone()).unwrap_err();
            assert!(!error.remedy().is_empty());
            error.to_string()
        };
        assert!(refused().contains("cannot read"), "{}", refused());
        write(&files);
        DoorCertificate::load(files.clone()).unwrap();
        let (certificate, key) =
            (fs::read(&files.certificate).unwrap(), fs::read_to_string(&files.key).unwrap());

        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(refused().contains("can be read by others (mode 640)"), "{}", refused());
        write(&files);
        fs::write(&files.certificate, &certificate).unwrap();
        assert!(refused().contains("cannot be used with the key"), "{}", refused());
        fs::write(&files.certificate, "no certificate").unwrap();
        assert!(refused().contains("has no certificate"), "{}", refused());
        write(&files);
        fs::write(&files.key, &key[..key.len() / 2]).unwrap();
        assert!(refused().contains("has no private key"), "{}", refused());
        assert!(!refused().contains(key.lines().nth(1).unwrap()), "{}", refused());
        fs::remove_file(&files.key).unwrap();
        fs::create_dir(&files.key).unwrap();
        assert!(refused().contains("is not a file"), "{}", refused());
    }

    #[test]
    fn changed_files_are_used_and_broken_ones_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        write(&files);
        let certificate = DoorCertificate::load(files.clone()).unwrap();
        let look = || {
            let mut current = certificate.current.lock().unwrap();
            current.look(&files);
            current.config.clone()
        };
        let first = look();
        assert!(Arc::ptr_eq(&first, &look()));
        fs::write(&files.certificate, "broken").unwrap();
        assert!(Arc::ptr_eq(&first, &look()));
        write(&files);
        let second = look();
        assert!(!Arc::ptr_eq(&first, &second));
        fs::remove_file(&files.key).unwrap();
        assert!(Arc::ptr_eq(&second, &look()));
    }

    #[test]
    fn debug_output_has_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        write(&files);
        let shown = format!("{:?}", DoorCertificate::load(files).unwrap());
        assert!(shown.contains("door.key") && !shown.contains("config"), "{shown}");
    }
}
