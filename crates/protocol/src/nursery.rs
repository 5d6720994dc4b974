//! What a node asks of its nursery, the process that keepers and zygotes are forked from, and what
//! that answers. One message is one JSON text on a socket that keeps messages apart; descriptors go
//! with it, in the order that each word names.

use serde::{Deserialize, Serialize};

/// The hidden command that is the nursery.
pub const COMMAND: &str = "nursery";

/// The longest message, either way. A longer one ends the conversation; a longer request goes in a file
/// ([`ToNursery::InFile`]), of [`crate::limits::LAUNCH_BYTES_MAX`] bytes at most.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Descriptors that go with one message: those of the request, and its file.
pub const DESCRIPTORS_MAX: usize = 4;

/// The descriptor that a zygote finds beside its standard ones: the node's socket to it, over which
/// it gets the connections of keepers.
pub const ZYGOTE_CONTROL: i32 = 3;

/// What the node asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToNursery {
    /// A keeper, with its listening socket and its log.
    Keeper { id: u64, hold: String },
    /// A zygote, with its end of the node's socket to it, and its log. It gets exactly this
    /// environment, and ends with the nursery.
    Zygote { id: u64, argv: Vec<String>, env: Vec<(String, String)>, cwd: String },
    /// A request that is too long for a message. Its JSON text of so many bytes is in the file that is
    /// the first descriptor; the request's own descriptors follow.
    InFile { id: u64, bytes: u64 },
}

/// What the nursery says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FromNursery {
    /// The process runs; a handle on it goes with this. Of a keeper it is the first process, which
    /// exits when it has forked the keeper, or stays above it as its guard.
    Started { id: u64, pid: u32 },
    /// Nothing was started.
    Failed { id: u64, why: String },
    /// It has ended and is reaped. Told of every zygote, and of a keeper's first process if it
    /// failed. Left out while nobody reads.
    Ended { id: u64, how: String },
}

impl ToNursery {
    pub fn id(&self) -> u64 {
        match self {
            Self::Keeper { id, .. } | Self::Zygote { id, .. } | Self::InFile { id, .. } => *id,
        }
    }

    /// How many descriptors go with it.
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
