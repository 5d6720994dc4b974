//! The messages between a node and its nursery, the process that forks keepers and zygotes. One message is
//! one JSON text on a socket that preserves message boundaries. Descriptors go with a message, in the order
//! that the message's documentation names.

use serde::{Deserialize, Serialize};

/// The hidden subcommand that runs the nursery.
pub const COMMAND: &str = "nursery";

/// Maximum bytes of a message in either direction. A longer message closes the connection. A longer request
/// goes in a file ([`ToNursery::InFile`]) of at most [`crate::limits::LAUNCH_BYTES_MAX`] bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of descriptors with one message: those of the request, and its file.
pub const DESCRIPTORS_MAX: usize = 4;

/// The zygote's descriptor of the node's control socket. Over it, the zygote receives the connections of
/// keepers.
pub const ZYGOTE_CONTROL: i32 = 3;

/// Requests from the node to the nursery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToNursery {
    /// Start a keeper. Descriptors: its listening socket, its log.
    Keeper { id: u64, hold: String },
    /// Start a zygote with exactly this environment. The zygote ends with the nursery. Descriptors: its end
    /// of the node's control socket, its log.
    Zygote { id: u64, argv: Vec<String>, env: Vec<(String, String)>, cwd: String },
    /// A request that is too long for a message. The first descriptor is a file with the request's JSON text
    /// of `bytes` bytes. The descriptors of the request follow.
    InFile { id: u64, bytes: u64 },
}

/// Messages from the nursery to the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromNursery {
    /// The process runs. Its pidfd goes with this message. For a keeper, this is the first process: it exits
    /// after it has forked the keeper, or stays as the keeper's guard.
    Started { id: u64, pid: u32 },
    /// The process was not started.
    Failed { id: u64, why: String },
    /// The process has ended and is reaped. Sent for every zygote, and for a keeper's first process that
    /// failed. Not sent while the node does not read.
    Ended { id: u64, how: String },
}

impl ToNursery {
    pub fn id(&self) -> u64 {
        match self {
            Self::Keeper { id, .. } | Self::Zygote { id, .. } | Self::InFile { id, .. } => *id,
        }
    }

    /// Number of descriptors that go with the request.
    pub fn descriptors(&self) -> usize {
        match self {
            Self::Keeper { .. } => 2,
            Self::Zygote { .. } => 2,
            Self::InFile { .. } => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_read_as_they_are_written() {
        let zygote = ToNursery::Zygote {
            id: 7,
            argv: vec!["/usr/bin/python3".to_owned(), "-I".to_owned()],
            env: vec![("LANG".to_owned(), "C.UTF-8".to_owned())],
            cwd: "/".to_owned(),
        };
        let keeper = ToNursery::Keeper { id: 8, hold: "auto".to_owned() };
        assert_eq!(
            serde_json::to_string(&keeper).unwrap(),
            r#"{"kind":"keeper","id":8,"hold":"auto"}"#
        );
        for word in [zygote, keeper] {
            let text = serde_json::to_vec(&word).unwrap();
            assert_eq!(serde_json::from_slice::<ToNursery>(&text).unwrap(), word);
        }
        let ended = FromNursery::Ended { id: 7, how: "signal SIGKILL".to_owned() };
        assert_eq!(
            serde_json::to_string(&ended).unwrap(),
            r#"{"kind":"ended","id":7,"how":"signal SIGKILL"}"#
        );
    }
}
