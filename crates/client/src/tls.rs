//! TLS to a node: which certificates the client trusts, and what a failed handshake means. The certificate of a node
//! is always verified; nothing turns that off.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, InvalidMessage, RootCertStore};
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::stream::LeanStream;

/// Maximum size of the file that `WINDLASS_CA` names. The public authorities of a machine take about 250 KiB.
const CA_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// The protocol that both sides speak inside TLS.
const HTTP_1: &[u8] = b"http/1.1";

/// How TLS to a node failed. The same attempt fails again until somebody changes a file, a variable or the node.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read the file {} of WINDLASS_CA: {cause}", path.display())]
    CaUnreadable { path: PathBuf, cause: io::Error },
    #[error("the file {} of WINDLASS_CA {why}", path.display())]
    CaUnusable { path: PathBuf, why: String },
    #[error("this machine has no certificates of public authorities: {cause}")]
    NoRoots { cause: String },
    #[error("the certificate of the node at {node} is not from an authority that {}", ByWhom(ca_file.as_deref()))]
    UnknownAuthority { node: String, ca_file: Option<PathBuf> },
    #[error("the certificate of the node at {node} is for another name: {names}")]
    WrongName { node: String, names: String },
    #[error("the certificate of the node at {node} has expired")]
    Expired { node: String },
    #[error("the certificate of the node at {node} is not valid yet")]
    NotValidYet { node: String },
    /// OpenSSL makes such a certificate unless it is told otherwise.
    #[error("the node at {node} shows the certificate of an authority as its own")]
    AuthorityAsNode { node: String },
    #[error("the certificate of the node at {node} is not valid: {cause}")]
    Invalid { node: String, cause: String },
    #[error("the node at {node} speaks HTTP without TLS, and the URL begins with https://")]
    PlainNode { node: String },
    #[error("what answers at {node} does not speak HTTP; a node with a certificate speaks HTTPS")]
    NotHttp { node: String },
    #[error("the TLS handshake with the node at {node} failed: {cause}")]
    Handshake { node: String, cause: String },
}

impl TlsError {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::CaUnreadable { .. } | Self::CaUnusable { .. } | Self::NoRoots { .. } => "bad_ca",
            Self::UnknownAuthority { .. }
            | Self::WrongName { .. }
            | Self::Expired { .. }
            | Self::NotValidYet { .. }
            | Self::AuthorityAsNode { .. }
            | Self::Invalid { .. } => "bad_certificate",
            Self::PlainNode { .. } | Self::NotHttp { .. } => "wrong_scheme",
            Self::Handshake { .. } => "tls_failed",
        }
    }

    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::CaUnreadable { .. } | Self::CaUnusable { .. } => {
                "set WINDLASS_CA to a PEM file with the certificate of the authority that signed the node's certificate"
                    .into()
            }
            Self::NoRoots { .. } => {
                "install the package ca-certificates, or set WINDLASS_CA to a PEM file with the node's authority".into()
            }
            Self::UnknownAuthority { ca_file: None, .. } => {
                "if the node has a certificate of your own authority, set WINDLASS_CA to a PEM file with that \
                 authority's certificate"
                    .into()
            }
            Self::UnknownAuthority { ca_file: Some(_), .. } => {
                "put the certificate of the authority that signed the node's certificate into that file; unset \
                 WINDLASS_CA to trust the authorities of this machine"
                    .into()
            }
            Self::WrongName { .. } => {
                "use a name of the certificate in WINDLASS_URL, or add this name to the node's certificate as a \
                 subject alternative name"
                    .into()
            }
            Self::Expired { .. } => "renew the certificate of the node, then restart the node".into(),
            Self::NotValidYet { .. } => "compare the clocks of this machine and of the node's machine".into(),
            Self::AuthorityAsNode { .. } => {
                "make the node's certificate with the extension basicConstraints=critical,CA:FALSE".into()
            }
            Self::Invalid { .. } => "give the node a valid certificate, then restart the node".into(),
            Self::PlainNode { node } => {
                format!("set WINDLASS_URL to http://{node}, or start the node with a certificate")
            }
            Self::NotHttp { node } => {
                format!("set WINDLASS_URL to https://{node}, or check that a node listens there")
            }
            Self::Handshake { .. } => {
                "check that a node with a certificate listens there, and that both sides support TLS 1.2 or 1.3".into()
            }
        }
    }
}

/// The end of a sentence: the authority is not one that ...
struct ByWhom<'a>(Option<&'a Path>);

impl fmt::Display for ByWhom<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(path) => write!(f, "{} (WINDLASS_CA) names", path.display()),
            None => f.write_str("this machine trusts"),
        }
    }
}

/// The authorities whose certificates a client accepts, as the settings of TLS. They are loaded when the first
/// connection needs them, and once.
#[derive(Debug, Clone)]
enum TrustedAuthorities {
    /// Those that this machine trusts.
    Machine,
    /// Only those of a PEM file.
    File { path: PathBuf, loaded: Arc<OnceCell<Arc<ClientConfig>>> },
}

/// How a client speaks TLS to one node.
#[derive(Debug, Clone)]
pub(crate) struct ClientTls {
    /// The host of the URL: a name or an IP address, which the certificate must have.
    name: ServerName<'static>,
    trusted: TrustedAuthorities,
}

impl ClientTls {
    /// Trusts the authorities of this machine. `None` if no certificate can be for this host.
    pub(crate) fn new(host: &str) -> Option<Self> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(bare.to_owned()).ok()?;
        Some(Self { name, trusted: TrustedAuthorities::Machine })
    }

    /// Trusts only the authorities of this PEM file.
    pub(crate) fn trust_only(&mut self, path: PathBuf) {
        self.trusted = TrustedAuthorities::File { path, loaded: Arc::default() };
    }

    /// Loads the trusted certificates, unless they are loaded already.
    pub(crate) async fn connector(&self) -> io::Result<TlsConnector> {
        static MACHINE: OnceCell<Arc<ClientConfig>> = OnceCell::const_new();
        let config = match &self.trusted {
            TrustedAuthorities::Machine => {
                MACHINE.get_or_try_init(|| off_runtime(of_machine)).await
            }
            TrustedAuthorities::File { path, loaded } => {
                let path = path.clone();
                loaded.get_or_try_init(|| off_runtime(move || of_file(&path))).await
            }
        };
        Ok(TlsConnector::from(config?.clone()))
    }

    /// The handshake on a connected stream. `node` is the node's address, for messages.
    pub(crate) async fn handshake(
        &self,
        connector: &TlsConnector,
        stream: LeanStream,
        node: &str,
    ) -> io::Result<TlsStream<LeanStream>> {
        let connected = connector.connect(self.name.clone(), stream).await;
        connected.map_err(|fault| self.explained(fault, node))
    }

    /// Names the cause of a failed handshake, if TLS is the cause. A connection that ended stays an error of the
    /// connection, because another attempt may succeed.
    fn explained(&self, fault: io::Error, node: &str) -> io::Error {
        let Some(cause) = fault.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>())
        else {
            return fault;
        };
        io::Error::other(self.of_rustls(cause, node.to_owned()))
    }

    fn of_rustls(&self, fault: &rustls::Error, node: String) -> TlsError {
        match fault {
            rustls::Error::InvalidCertificate(fault) => self.of_certificate(fault, node),
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
                TlsError::PlainNode { node }
            }
            fault => TlsError::Handshake { node, cause: fault.to_string() },
        }
    }

    fn of_certificate(&self, fault: &CertificateError, node: String) -> TlsError {
        match fault {
            CertificateError::UnknownIssuer => {
                let ca_file = match &self.trusted {
                    TrustedAuthorities::Machine => None,
                    TrustedAuthorities::File { path, .. } => Some(path.clone()),
                };
                TlsError::UnknownAuthority { node, ca_file }
            }
            CertificateError::NotValidForNameContext { presented, .. } => {
                TlsError::WrongName { node, names: names_of(presented) }
            }
            CertificateError::NotValidForName => {
                TlsError::WrongName { node, names: "unknown".to_owned() }
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                TlsError::Expired { node }
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                TlsError::NotValidYet { node }
            }
            // The type of this error belongs to a crate that rustls does not export.
            CertificateError::Other(fault) if fault.to_string().contains("CaUsedAsEndEntity") => {
                TlsError::AuthorityAsNode { node }
            }
            fault => TlsError::Invalid { node, cause: fault.to_string() },
        }
    }
}

/// The names of a certificate, which rustls writes as `DnsName("node.example")`.
fn names_of(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').to_owned()
    };
    let names: Vec<String> = presented.iter().map(bare).collect();
    if names.is_empty() {
        "it has no subject alternative name".to_owned()
    } else {
        names.join(", ")
    }
}

/// Runs `load` where it may block. Files are read once, off the path of requests.
async fn off_runtime(
    load: impl FnOnce() -> Result<ClientConfig, TlsError> + Send + 'static,
) -> io::Result<Arc<ClientConfig>> {
    let loaded = tokio::task::spawn_blocking(load).await.map_err(io::Error::other)?;
    loaded.map(Arc::new).map_err(io::Error::other)
}

fn of_machine() -> Result<ClientConfig, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // Some machines have old certificates that cannot be parsed. The others count.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let cause = found.errors.first().map(ToString::to_string);
        return Err(TlsError::NoRoots { cause: cause.unwrap_or_else(|| "none found".to_owned()) });
    }
    Ok(trusting(roots))
}

fn of_file(path: &Path) -> Result<ClientConfig, TlsError> {
    let unusable = |why: String| TlsError::CaUnusable { path: path.to_owned(), why };
    let mut pem = Vec::new();
    File::open(path)
        .and_then(|file| file.take(CA_BYTES_MAX + 1).read_to_end(&mut pem))
        .map_err(|cause| TlsError::CaUnreadable { path: path.to_owned(), cause })?;
    if pem.len() as u64 > CA_BYTES_MAX {
        return Err(unusable(format!("is longer than {CA_BYTES_MAX} bytes")));
    }
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|fault| unusable(format!("is not PEM: {fault}")))?;
        roots
            .add(certificate)
            .map_err(|fault| unusable(format!("has a certificate that cannot be used: {fault}")))?;
    }
    if roots.is_empty() {
        return Err(unusable("has no certificate in PEM form".to_owned()));
    }
    Ok(trusting(roots))
}

fn trusting(roots: RootCertStore) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the cipher suites of TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    config
}

#[cfg(test)]
mod tests;
