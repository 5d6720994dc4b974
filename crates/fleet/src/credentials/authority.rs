//! The certificate authority of a fleet. It signs the certificates of nodes, and chooses all that is in them: of a
//! request it takes only the public key.

use std::fmt;
use std::path::{Path, PathBuf};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::CertifiedKey;
use time::{Duration, OffsetDateTime};
use windlass_protocol::NodeName;

use super::error::CredentialsError;
use super::node_files::{self, NodeCredentialFiles};
use super::random::{Fingerprint, random, sha256};
use super::records::{self, AuthorityRecords};
use super::request::{make_failed, new_key, public_key_of, request_of};
use super::{files, names, tls};

const CERTIFICATE: &str = "authority.pem";
const KEY: &str = "authority.key";

/// The name in the authority's certificate.
const NAME: &str = "Windlass fleet";

/// How long the authority's certificate is valid.
const AUTHORITY_VALID: Duration = Duration::days(10 * 365);

/// How long the certificate of a node is valid.
pub const NODE_VALID_MS: u64 = 30 * 24 * 60 * 60 * 1_000;

/// A certificate of a node is valid from so long before it was made: clocks differ.
const NODE_BEFORE: Duration = Duration::minutes(5);

/// The same of the authority. It is longer, so that the first node's certificate does not begin before it.
const AUTHORITY_BEFORE: Duration = Duration::days(1);

/// Read limit of a file.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A fleet's certificate authority. The machine where `windlass fleet init` ran has it.
pub struct FleetAuthority {
    pub(super) dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    fingerprint: Fingerprint,
}

impl FleetAuthority {
    /// Makes an authority in the directory.
    pub fn create(dir: &Path) -> Result<Self, CredentialsError> {
        files::make_dir(dir)?;
        let _lock = records::lock(dir)?;
        let path = dir.join(KEY);
        if files::read(&path, FILE_BYTES_MAX)?.is_some() {
            return Err(CredentialsError::AuthorityExists { path });
        }
        let key = new_key()?;
        let pair = KeyPair::from_pem(&key).map_err(make_failed)?;
        let certificate = authority_params()?.self_signed(&pair).map_err(make_failed)?.pem();
        files::write(&dir.join(CERTIFICATE), &certificate)?;
        files::write(&node_files::ca_path(dir), &certificate)?;
        AuthorityRecords::default().write(dir)?;
        // The key is last: without it there is no authority.
        files::write(&path, &key)?;
        Self::with(dir, &key, certificate)
    }

    /// The authority in the directory; `None` if the machine has none.
    pub fn open(dir: &Path) -> Result<Option<Self>, CredentialsError> {
        let Some(key) = files::read(&dir.join(KEY), FILE_BYTES_MAX)? else { return Ok(None) };
        files::check_dir(dir)?;
        let path = dir.join(CERTIFICATE);
        let certificate = files::read(&path, FILE_BYTES_MAX)?;
        let certificate = certificate.ok_or(CredentialsError::Absent { path })?;
        Self::with(dir, &key, certificate).map(Some)
    }

    fn with(dir: &Path, key: &str, certificate: String) -> Result<Self, CredentialsError> {
        let unusable = |problem: String| {
            let path = dir.join(CERTIFICATE);
            CredentialsError::Unusable { path, problem }
        };
        let der = tls::der_of(&certificate)?;
        let private = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| unusable(error.to_string()))?;
        // A key that does not fit would sign certificates that nobody accepts.
        CertifiedKey::from_der(vec![der.clone()], private, &tls::provider())
            .map_err(|error| unusable(error.to_string()))?;
        let pair = KeyPair::from_pem(key).map_err(make_failed)?;
        let issuer = Issuer::from_ca_cert_der(&der, pair).map_err(make_failed)?;
        Ok(Self { dir: dir.to_owned(), issuer, certificate, fingerprint: sha256(&der) })
    }

    /// Removes the authority's files. No node can join or renew its certificate afterwards.
    pub fn remove(dir: &Path) -> Result<(), CredentialsError> {
        files::remove(&dir.join(KEY))?;
        files::remove(&dir.join(CERTIFICATE))?;
        records::paths(dir).iter().try_for_each(|path| files::remove(path))
    }

    /// The authority's certificate as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// SHA-256 of the authority's certificate.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// A certificate as PEM for the node, with the public key of the request. The request names nothing.
    pub fn sign(&self, csr_pem: &str, node: &NodeName) -> Result<String, CredentialsError> {
        self.sign_at(csr_pem, node, OffsetDateTime::now_utc())
    }

    pub(super) fn sign_at(
        &self,
        csr_pem: &str,
        node: &NodeName,
        now: OffsetDateTime,
    ) -> Result<String, CredentialsError> {
        let key = public_key_of(csr_pem)?;
        let mut params = CertificateParams::default();
        let name = Ia5String::try_from(names::dns_name(node)).map_err(make_failed)?;
        params.subject_alt_names = vec![SanType::DnsName(name)];
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial_number()?);
        params.not_before = now - NODE_BEFORE;
        params.not_after = now + std::time::Duration::from_millis(NODE_VALID_MS);
        params.signed_by(&key, &self.issuer).map(|made| made.pem()).map_err(make_failed)
    }

    /// New credentials for the node of this machine, which become a member's.
    pub fn issue_own(&self, node: &NodeName) -> Result<NodeCredentialFiles, CredentialsError> {
        let key = new_key()?;
        let certificate = self.sign(&request_of(&key)?, node)?;
        let _lock = records::lock(&self.dir)?;
        let mut records = AuthorityRecords::read(&self.dir)?;
        records.members.insert(node.clone());
        records.write(&self.dir)?;
        Ok(NodeCredentialFiles { ca: self.certificate.clone(), certificate, key })
    }
}

impl fmt::Debug for FleetAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetAuthority").field("dir", &self.dir).finish_non_exhaustive()
    }
}

fn authority_params() -> Result<CertificateParams, CredentialsError> {
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.serial_number = Some(serial_number()?);
    params.not_before = now - AUTHORITY_BEFORE;
    params.not_after = now + AUTHORITY_VALID;
    Ok(params)
}

/// A positive number that no other certificate has.
fn serial_number() -> Result<SerialNumber, CredentialsError> {
    let mut bytes = random::<16>()?;
    bytes[0] = (bytes[0] & 0x3f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}
