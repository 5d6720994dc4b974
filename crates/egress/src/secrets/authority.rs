//! The certificate authority of a node. It issues the certificates with which the proxy ends TLS for hosts that a
//! secret rule names. Only sessions that have secret rules trust the authority.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use time::{Duration, OffsetDateTime};

/// The name in the authority's certificate.
const NAME: &str = "Windlass node";

/// How long the authority's certificate is valid.
const VALID: Duration = Duration::days(10 * 365);

/// How long the certificate of a host is valid. Many clients refuse more than 398 days.
const HOST_VALID: Duration = Duration::days(300);

/// A certificate is valid from so long before it was made: clocks differ.
const BEFORE: Duration = Duration::days(1);

/// Maximum number of hosts whose certificates are kept.
const HOSTS_MAX: usize = 256;

/// What TLS carries in an ended connection, on both sides.
const HTTP_1: &[u8] = b"http/1.1";

/// Why there is no certificate authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("cannot make the certificate authority of the node: {0}")]
    Make(#[source] rcgen::Error),
    #[error("cannot read the key of the node's certificate authority: {0}")]
    Key(#[source] rcgen::Error),
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("this machine has no certificates of public authorities: {0}")]
    Roots(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A node's certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate and the public ones, as PEM: what a session trusts.
    bundle: String,
    /// For connections to hosts.
    client: Arc<ClientConfig>,
    hosts: Mutex<HashMap<String, Arc<ServerConfig>>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// A new key, as PEM. The caller keeps it where no session can read it.
    pub fn new_key() -> Result<String, AuthorityError> {
        KeyPair::generate().map(|key| key.serialize_pem()).map_err(AuthorityError::Make)
    }

    /// The authority with this key and certificate. Without a certificate, one is made: `certificate` has it then.
    pub fn open(key: &str, certificate: &mut Option<String>) -> Result<Self, AuthorityError> {
        let public = rustls_native_certs::load_native_certs();
        if public.certs.is_empty() {
            let why = public.errors.first().map(ToString::to_string);
            return Err(AuthorityError::Roots(why.unwrap_or_else(|| "none found".to_owned())));
        }
        Self::with_roots(key, certificate, public.certs)
    }

    /// An authority whose proxy trusts hosts by these certificates.
    pub(crate) fn with_roots(
        key: &str,
        certificate: &mut Option<String>,
        public: Vec<CertificateDer<'static>>,
    ) -> Result<Self, AuthorityError> {
        let key = KeyPair::from_pem(key).map_err(AuthorityError::Key)?;
        let params = authority_params();
        let own = match certificate {
            Some(certificate) => certificate.clone(),
            None => {
                let made = params.self_signed(&key).map_err(AuthorityError::Make)?.pem();
                certificate.insert(made).clone()
            }
        };
        let mut bundle = own;
        for certificate in &public {
            bundle.push_str(&pem::encode(&pem::Pem::new("CERTIFICATE", certificate.as_ref())));
        }
        let client = Arc::new(client_config(public)?);
        let issuer = Issuer::new(params, key);
        Ok(Self { issuer, bundle, client, hosts: Mutex::default() })
    }

    /// The certificates that a session trusts, as PEM.
    pub fn bundle(&self) -> &str {
        &self.bundle
    }

    pub(super) fn client(&self) -> Arc<ClientConfig> {
        self.client.clone()
    }

    /// TLS as the server of this host.
    pub(crate) fn server_for(&self, host: &str) -> Result<Arc<ServerConfig>, AuthorityError> {
        let mut hosts = self.hosts.lock().expect("no holder of this lock can panic");
        if let Some(known) = hosts.get(host) {
            return Ok(known.clone());
        }
        let made = Arc::new(self.issue(host)?);
        if hosts.len() >= HOSTS_MAX {
            hosts.clear();
        }
        hosts.insert(host.to_owned(), made.clone());
        Ok(made)
    }

    fn issue(&self, host: &str) -> Result<ServerConfig, AuthorityError> {
        let key = KeyPair::generate().map_err(AuthorityError::Make)?;
        let mut params = CertificateParams::default();
        let name = match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(host.try_into().map_err(AuthorityError::Make)?),
        };
        params.subject_alt_names = vec![name];
        params.distinguished_name = DistinguishedName::new();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = validity(HOST_VALID);
        let certificate = params.signed_by(&key, &self.issuer).map_err(AuthorityError::Make)?;
        let chain = vec![CertificateDer::from(certificate)];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![HTTP_1.to_vec()];
        Ok(config)
    }
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = validity(VALID);
    params
}

fn validity(length: Duration) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    (now - BEFORE, now + length)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn client_config(public: Vec<CertificateDer<'static>>) -> Result<ClientConfig, AuthorityError> {
    let mut roots = RootCertStore::empty();
    // Some machines have old certificates that cannot be parsed. The others count.
    roots.add_parsable_certificates(public);
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![HTTP_1.to_vec()];
    Ok(config)
}
