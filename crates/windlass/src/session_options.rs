//! How long a new session stays, and when its turns are told as done: options of `windlass run` and `windlass repl`.

use windlass_protocol::api::Durability;

use crate::duration::{self, Timeout};

/// Options about the life of a new session.
#[derive(Debug, clap::Args)]
pub struct NewSessionOptions {
    /// Keep the new session when the command ends
    #[arg(long)]
    pub keep: bool,
    /// End the kept session after this long without a client and without a turn, or `never`; default: the
    /// node's setting, usually 24h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_timeout, requires = "keep")]
    pub idle: Option<Timeout>,
    /// When acceptance and end of a turn are told [default: local]
    #[arg(long, value_name = "WHEN")]
    durability: Option<DurabilityChoice>,
}

/// When acceptance and end of a turn are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DurabilityChoice {
    /// Once the node's journal has them
    Local,
    /// Once the fleet's copy has them, too; needs a fleet
    Replicated,
}

impl NewSessionOptions {
    pub fn durability(&self) -> Durability {
        match self.durability {
            None | Some(DurabilityChoice::Local) => Durability::Local,
            Some(DurabilityChoice::Replicated) => Durability::Replicated,
        }
    }
}
