//! Certificates of tests: an authority, and a host that it vouches for.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// Files in a directory: the authority's certificate, and the host's certificate and key.
#[derive(Debug, Clone)]
pub struct TestCertificates {
    pub authority: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl TestCertificates {
    /// Makes the files for a host of these names.
    pub fn make(dir: &Path, names: &[&str]) -> anyhow::Result<Self> {
        let authority_key = KeyPair::generate()?;
        let mut authority = CertificateParams::default();
        authority.distinguished_name.push(DnType::CommonName, "authority of a test");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let own = authority.self_signed(&authority_key)?;
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &issuer)?;
        let files = Self {
            authority: dir.join("authority.pem"),
            certificate: dir.join("host.pem"),
            key: dir.join("host.key"),
        };
        std::fs::write(&files.authority, own.pem())?;
        std::fs::write(&files.certificate, certificate.pem())?;
        std::fs::write(&files.key, key.serialize_pem())?;
        Ok(files)
    }
}
