//! Keys, and certificate signing requests: how a node makes one, and what the authority takes from it.

use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DistinguishedName, KeyPair,
    PKCS_ECDSA_P256_SHA256, PublicKey, PublicKeyData as _,
};

use super::error::CredentialsError;

/// Maximum length of a request. One with a key of ECDSA P-256 has about 400 characters.
const REQUEST_CHARS_MAX: usize = 8 * 1024;

/// A point of P-256 that is not compressed: 4, and two numbers of 32 bytes.
const POINT_BYTES: usize = 65;

/// A new key of ECDSA P-256, as PEM.
pub(super) fn new_key() -> Result<String, CredentialsError> {
    KeyPair::generate().map(|key| key.serialize_pem()).map_err(make_failed)
}

/// A certificate signing request of this key, as PEM. It names nothing: the authority chooses the names.
pub(super) fn request_of(key: &str) -> Result<String, CredentialsError> {
    let key = KeyPair::from_pem(key).map_err(make_failed)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.serialize_request(&key).and_then(|request| request.pem()).map_err(make_failed)
}

/// The public key of a request. The signature of the request shows that its sender has the private key. Nothing else in
/// the request counts.
pub(super) fn public_key_of(csr: &str) -> Result<PublicKey, CredentialsError> {
    let refused = |why: &str| CredentialsError::Request(why.to_owned());
    if csr.len() > REQUEST_CHARS_MAX {
        return Err(refused("it is too long"));
    }
    let request = CertificateSigningRequestParams::from_pem(csr)
        .map_err(|error| CredentialsError::Request(error.to_string()))?;
    let key = request.public_key;
    let is_p256 = *key.algorithm() == PKCS_ECDSA_P256_SHA256;
    if !is_p256 || key.der_bytes().len() != POINT_BYTES || key.der_bytes()[0] != 4 {
        return Err(refused("its key is not of ECDSA P-256"));
    }
    Ok(key)
}

pub(super) fn make_failed(error: rcgen::Error) -> CredentialsError {
    CredentialsError::Make(error.to_string())
}
