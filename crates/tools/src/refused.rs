//! Why a request of a tool host is refused.

use windlass_protocol::ErrorCode;

/// The refusal of a tool host's request.
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
