//! Files of a session's workspace: requests of clients and replies of the node. File content is the body of a
//! request or reply, never JSON.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Maximum bytes of one file, unless the policy has a lower limit. A larger file is refused with
/// `message_too_large`.
pub const FILE_BYTES_MAX: u64 = 4 << 30;

/// Maximum number of files in one write-back. A larger write-back is refused.
pub const CHANGES_MAX: usize = 10_000;

/// Maximum number of entries in one page of a list.
pub const ENTRIES_MAX: usize = 1000;

/// The query of `GET /v1/sessions/{session}/files`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FilesQuery {
    /// The path of a directory in the workspace. Default: the workspace itself.
    #[serde(default)]
    pub path: String,
    /// Whether to include the contents of subdirectories.
    #[serde(default)]
    pub recursive: bool,
    /// Return entries after this path: the last path of the previous page.
    #[serde(default)]
    pub after: Option<String>,
    /// Maximum number of entries. Default and maximum: 1000.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// One page of the files in a workspace, in order. A directory comes before its contents. Names are compared
/// byte by byte.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    pub entries: Vec<FileEntry>,
    /// Whether more entries follow. Request them with the last path of this page as `after`.
    pub more: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// The path relative to the workspace, also if another directory was requested.
    pub path: String,
    pub kind: FileKind,
    pub bytes: u64,
    pub modified_ms: u64,
    /// Only for regular files. It changes with every change of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    /// A symlink, which is not followed.
    Link,
    /// A pipe, a socket or a device, which is never opened.
    Other,
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileWritten {
    pub path: String,
    pub bytes: u64,
    pub etag: String,
}

/// A file that was deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileDeleted {
    pub path: String,
}

/// The result of a write-back. Either all requested changes are done, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WrittenBack {
    pub written: Vec<FileWritten>,
    pub deleted: Vec<FileDeleted>,
}

/// The header of one frame in the body of a write-back. The body is a sequence of frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileChange {
    /// Write a file. The frame's body is the file's content.
    Put {
        path: String,
        /// The etag that the file must have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        if_match: Option<String>,
        /// `*`: the file must not exist.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        if_none_match: Option<String>,
        /// Whether the content continues in the next frame, a `put` of the same path.
        #[serde(default, skip_serializing_if = "super::is_false")]
        more: bool,
    },
    Delete {
        path: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        if_match: Option<String>,
    },
}

/// The query of requests that write files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WriteQuery {
    /// Write only what the session's policy lets its code write. For tool hosts: the paths of a call come from
    /// the code.
    #[serde(default)]
    pub within_policy: bool,
}

/// The query of `GET /v1/sessions/{session}/files/watch`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WatchQuery {
    /// The path of a directory in the workspace. Default: the workspace itself.
    #[serde(default)]
    pub path: String,
    /// Return the content of a file named `watch` instead of watching.
    #[serde(default)]
    pub content: bool,
}

/// A change of a file or directory below a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEvent {
    pub kind: FileEventKind,
    pub path: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileEventKind {
    /// The path was created, or a rename put a file there, also over an existing one.
    Made,
    /// The file was written.
    Changed,
    /// The path no longer exists.
    Removed,
    /// Some events were lost. List the files below this path again.
    Overflow,
}
