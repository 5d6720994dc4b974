//! The files that each node of a fleet has: its key, its certificate, and the certificate of the fleet's authority.

use std::fmt;
use std::path::Path;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use windlass_protocol::NodeName;

use super::error::CredentialsError;
use super::{files, request};

const CA: &str = "fleet-ca.pem";
const CERTIFICATE: &str = "node.pem";
const KEY: &str = "node.key";
const SITE: &str = "authority-site.json";

/// Read limit of a file. A certificate has about 700 bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The version of the file that says where the authority is.
const SITE_VERSION: u32 = 1;

/// The credentials of a node, as PEM.
#[derive(Clone)]
pub struct NodeCredentialFiles {
    /// The certificate of the fleet's authority.
    pub ca: String,
    pub certificate: String,
    pub(super) key: String,
}

impl NodeCredentialFiles {
    pub(super) fn read(dir: &Path) -> Result<Self, CredentialsError> {
        files::check_dir(dir)?;
        Ok(Self {
            ca: required(dir, CA)?,
            certificate: required(dir, CERTIFICATE)?,
            key: required(dir, KEY)?,
        })
    }

    /// Makes the directory and writes the files. The certificate is last: without it there are no credentials.
    pub fn write(&self, dir: &Path) -> Result<(), CredentialsError> {
        files::make_dir(dir)?;
        files::write(&dir.join(CA), &self.ca)?;
        files::write(&dir.join(KEY), &self.key)?;
        self.write_certificate(dir)
    }

    /// Removes the files, and where the authority is. The files of an authority stay.
    pub fn remove(dir: &Path) -> Result<(), CredentialsError> {
        [CERTIFICATE, KEY, CA, SITE].iter().try_for_each(|name| files::remove(&dir.join(name)))
    }

    /// Whether the directory has a node's certificate. It may be unusable.
    pub fn exist(dir: &Path) -> bool {
        dir.join(CERTIFICATE).exists()
    }

    pub(super) fn write_certificate(&self, dir: &Path) -> Result<(), CredentialsError> {
        files::write(&dir.join(CERTIFICATE), &self.certificate)
    }

    pub(super) fn with_certificate(&self, certificate: String) -> Self {
        Self { certificate, ..self.clone() }
    }

    /// A certificate signing request of the key, as PEM.
    pub(super) fn request(&self) -> Result<String, CredentialsError> {
        request::request_of(&self.key)
    }

    pub(super) fn private_key(&self) -> Result<PrivateKeyDer<'static>, CredentialsError> {
        let read = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        read.map_err(|_| CredentialsError::Certificate("its key is not PEM".to_owned()))
    }
}

impl fmt::Debug for NodeCredentialFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCredentialFiles").finish_non_exhaustive()
    }
}

/// Where the node is that has the fleet's authority: it renews certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthoritySite {
    version: u32,
    pub node: NodeName,
    /// HOST:PORT, as it was when this node joined.
    pub address: String,
}

impl AuthoritySite {
    pub fn new(node: NodeName, address: impl Into<String>) -> Self {
        Self { version: SITE_VERSION, node, address: address.into() }
    }

    pub fn read(dir: &Path) -> Result<Self, CredentialsError> {
        files::check_dir(dir)?;
        let path = dir.join(SITE);
        let unusable = |problem| CredentialsError::Unusable { path: path.clone(), problem };
        let site: Self = serde_json::from_str(&required(dir, SITE)?)
            .map_err(|error| unusable(error.to_string()))?;
        if site.version != SITE_VERSION {
            let problem = format!("it has version {}, not {SITE_VERSION}", site.version);
            return Err(unusable(problem));
        }
        Ok(site)
    }

    pub fn write(&self, dir: &Path) -> Result<(), CredentialsError> {
        let text = serde_json::to_string_pretty(self).expect("texts and numbers are JSON");
        files::write(&dir.join(SITE), &text)
    }
}

fn required(dir: &Path, name: &str) -> Result<String, CredentialsError> {
    let path = dir.join(name);
    files::read(&path, FILE_BYTES_MAX)?.ok_or(CredentialsError::Absent { path })
}

/// The path of the authority's certificate in a node's directory.
pub(super) fn ca_path(dir: &Path) -> std::path::PathBuf {
    dir.join(CA)
}
