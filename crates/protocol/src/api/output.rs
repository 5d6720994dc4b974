//! The output of a turn in a reply: all of it, or one stream, within a byte budget. The search in it.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

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

/// What to search for in the output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SearchQuery {
    /// The text to find, compared byte by byte.
    pub query: String,
    #[serde(default)]
    pub turn: Option<String>,
    /// Maximum number of matches. Default: 100, maximum: 1000.
    #[serde(default)]
    pub limit: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchResult {
    pub matches: Vec<SearchMatch>,
    /// Whether more matches follow the last one.
    pub more: bool,
}

/// A line that contains the text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SearchMatch {
    /// The offset of the match in the session's output.
    pub offset: u64,
    /// The line around the match, cut to 512 bytes.
    pub line: String,
}
