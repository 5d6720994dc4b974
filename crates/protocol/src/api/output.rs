//! The output of a turn in a reply: all of it, or one stream, within a byte budget.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A turn's output within a byte budget: the head, the tail, and the number of bytes between them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutputView {
    /// The whole text, or head, marker and tail. Bytes that are not UTF-8 are shown as U+FFFD.
    pub text: String,
    /// Total bytes of output.
    pub bytes: u64,
    /// The offset of the turn's output in the session's output, for `GET output?from=`.
    pub from: u64,
    /// Bytes between head and tail that are not shown.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub omitted_bytes: u64,
    /// The raw bytes in base64, if they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// One stream of a turn's output within a byte budget: the head, the tail, and the number of bytes between
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamView {
    /// The whole text, or head, marker and tail. Bytes that are not UTF-8 are shown as U+FFFD.
    pub text: String,
    /// Bytes of this stream that the journal has.
    pub bytes: u64,
    /// Bytes between head and tail that are not shown.
    #[serde(default, skip_serializing_if = "super::is_zero")]
    pub omitted_bytes: u64,
    /// The raw bytes in base64, if they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}
