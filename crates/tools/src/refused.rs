//! Why a tool host is not served.

use windlass_protocol::ErrorCode;

/// A request of a tool host that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HostRefused {
    pub code: ErrorCode,
    pub message: String,
}

impl HostRefused {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}
