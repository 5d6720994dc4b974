//! What a certificate says: for which node, and how long it is valid. Never checks who has signed it.

use windlass_protocol::NodeName;
use x509_parser::extensions::GeneralName;

use super::names;

/// What the certificate of a node says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CertificateFacts {
    pub node: NodeName,
    pub valid_from_ms: u64,
    pub expires_at_ms: u64,
}

impl CertificateFacts {
    /// Reads the certificate (DER). A certificate with another name than exactly one of a node is none of a node.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (rest, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        if !rest.is_empty() {
            return None;
        }
        let names = certificate.subject_alternative_name().ok()??;
        let [GeneralName::DNSName(name)] = names.value.general_names.as_slice() else {
            return None;
        };
        let ms = |seconds: i64| u64::try_from(seconds).ok()?.checked_mul(1_000);
        Some(Self {
            node: names::node_of(name)?,
            valid_from_ms: ms(certificate.validity().not_before.timestamp())?,
            expires_at_ms: ms(certificate.validity().not_after.timestamp())?,
        })
    }
}
