//! Random bytes, fingerprints, and bytes as text.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::error::CredentialsError;

/// A SHA-256.
pub type Fingerprint = [u8; 32];

pub(super) fn random<const BYTES: usize>() -> Result<[u8; BYTES], CredentialsError> {
    let mut bytes = [0; BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| CredentialsError::Make("the kernel gives no random bytes".to_owned()))?;
    Ok(bytes)
}

pub(super) fn random_hex<const BYTES: usize>() -> Result<String, CredentialsError> {
    random::<BYTES>().map(|bytes| hex(&bytes))
}

pub(super) fn sha256(bytes: &[u8]) -> Fingerprint {
    let hash = digest::digest(&digest::SHA256, bytes);
    hash.as_ref().try_into().expect("a SHA-256 has 32 bytes")
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn base64url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(super) fn from_base64url(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// The 32 bytes that a text stands for.
pub(super) fn bytes_of(text: &str) -> Option<[u8; 32]> {
    from_base64url(text)?.try_into().ok()
}
