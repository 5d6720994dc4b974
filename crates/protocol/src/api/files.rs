//! Files of a session's workspace: what clients ask about them, and what the node answers. Content
//! itself is a request's or an answer's body, and never JSON.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// One file, wherever the policy does not say less. A larger one is refused with
/// `message_too_large`.
pub const FILE_BYTES_MAX: u64 = 4 << 30;

/// Files in one write-back. One with more is refused.
pub const CHANGES_MAX: usize = 10_000;

/// Entries in one page of a list.
pub const ENTRIES_MAX: usize = 1000;

/// What `GET /v1/sessions/{session}/files` is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
pub struct FilesQuery {
    /// A directory, by its path in the workspace. Default: the workspace itself.
    #[serde(default)]
    pub path: String,
    /// What is in its directories too.
    #[serde(default)]
    pub recursive: bool,
    /// Entries after this one: the last path of the page before.
    #[serde(default)]
    pub after: Option<String>,
    /// At most so many entries. Default and most: 1000.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Some of the files in a workspace, in order: a directory comes before what is in it, and names
/// are compared byte by byte.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    pub entries: Vec<FileEntry>,
    /// There are more: ask again with `after`, the last of these.
    pub more: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// In the workspace, whatever directory was asked for.
    pub path: String,
    pub kind: FileKind,
    pub bytes: u64,
    pub modified_ms: u64,
    /// Of plain files: changes with every change of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    /// A symbolic link, which is not followed.
    Link,
    /// A pipe, a socket or a device: never opened.
    Other,
}

/// A file as it was put in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileWritten {
    pub path: String,
    pub bytes: u64,
    pub etag: String,
}

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileDeleted {
    pub path: String,
}

/// What a write-back did: all that it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WrittenBack {
    pub written: Vec<FileWritten>,
    pub deleted: Vec<FileDeleted>,
}

/// The header of a frame in a write-back's body, which is a sequence of frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileChange {
    /// The frame's body is the file's content.
    Put {
        path: String,
        /// The etag that the file must have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        if_match: Option<String>,
        /// `*`: there must be no such file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        if_none_match: Option<String>,
        /// The content goes on in the next frame, a `put` of the same path.
        #[serde(default, skip_serializing_if = "super::is_false")]
        more: bool,
    },
    Delete {
        path: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        if_match: Option<String>,
    },
}

/// What `GET /v1/sessions/{session}/files/watch` is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
pub struct WatchQuery {
    /// A directory, by its path in the workspace. Default: the workspace itself.
    #[serde(default)]
    pub path: String,
    /// The content of a file called `watch`, and no watching.
    #[serde(default)]
    pub content: bool,
}

/// Something happened to a file or directory below a watched one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEvent {
    pub kind: FileEventKind,
    pub path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileEventKind {
    /// It is there now: made, or put in place by a rename, also of another onto it.
    Made,
    /// It was written to.
    Changed,
    /// It is not there any more.
    Removed,
    /// Not all can be told: below this path, look for yourself.
    Overflow,
}
