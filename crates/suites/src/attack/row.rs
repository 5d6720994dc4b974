//! The result of one attack at one level and network setting. As JSON it goes from the user's half of a run
//! to root's half, and to scripts.

use serde::{Deserialize, Serialize};
use windlass_protocol::confinement::Isolation;
use windlass_testkit::attacks::{Attack, AttackVerdict, NetworkSetting};

/// The user that the node and its sessions run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Privilege {
    Root,
    User,
}

impl Privilege {
    pub fn this() -> Self {
        if rustix::process::geteuid().is_root() { Self::Root } else { Self::User }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::User => "user",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttackOutcome {
    Refused,
    Through,
    NoVerdict,
    NotClaimed,
}

/// The result of one attack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttackRow {
    pub line: u32,
    pub program: String,
    pub name: String,
    pub who: Privilege,
    pub level: Isolation,
    /// The network setting, by name.
    pub network: String,
    /// Whether the level claims to refuse the attack.
    pub claimed: bool,
    pub kind: AttackOutcome,
    /// What refused the attack, or what the attack achieved.
    pub words: String,
}

impl AttackRow {
    pub fn new(
        attack: &Attack,
        (level, network): (Isolation, NetworkSetting),
        verdict: AttackVerdict,
    ) -> Self {
        let (kind, words) = match verdict {
            AttackVerdict::Refused(by) => (AttackOutcome::Refused, by),
            AttackVerdict::Through(what) => (AttackOutcome::Through, what),
            AttackVerdict::NoVerdict(why) => (AttackOutcome::NoVerdict, why),
            AttackVerdict::NotClaimed(why) => (AttackOutcome::NotClaimed, why),
        };
        Self {
            line: attack.line,
            program: attack.program.to_owned(),
            name: attack.name.to_owned(),
            who: Privilege::this(),
            level,
            network: network.as_str().to_owned(),
            claimed: attack.claimed_with(level, network) && kind != AttackOutcome::NotClaimed,
            kind,
            words,
        }
    }

    /// Whether a claim of the level is broken or could not be checked.
    pub fn fails(&self) -> bool {
        self.claimed && self.kind != AttackOutcome::Refused
    }

    pub fn complaint(&self) -> String {
        let what = match self.kind {
            AttackOutcome::Through => "got through",
            _ => "gave no verdict",
        };
        let Self { program, level, network, words, .. } = self;
        let who = self.who.as_str();
        format!("{program} {what} as {who} at {level} with network {network}: {words}")
    }

    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("a row is plain data")
    }
}
