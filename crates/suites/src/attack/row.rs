//! One attack's verdict, as the halves of a run tell it to each other and to scripts.

use serde::{Deserialize, Serialize};
use windlass_protocol::confinement::Isolation;
use windlass_testkit::attacks::{Attack, AttackVerdict, NetworkSetting};

/// Whose rights the sessions have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    Root,
    User,
}

impl Who {
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
pub enum Kind {
    Refused,
    Through,
    NoVerdict,
    NotClaimed,
}

/// What came of one attack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    pub line: u32,
    pub program: String,
    pub name: String,
    pub who: Who,
    pub level: Isolation,
    /// The network setting, by name.
    pub network: String,
    /// Whether the level claims to refuse it.
    pub claimed: bool,
    pub kind: Kind,
    /// By what it was refused, or what it got.
    pub words: String,
}

impl Row {
    pub fn new(
        attack: &Attack,
        (level, network): (Isolation, NetworkSetting),
        verdict: AttackVerdict,
    ) -> Self {
        let (kind, words) = match verdict {
            AttackVerdict::Refused(by) => (Kind::Refused, by),
            AttackVerdict::Through(what) => (Kind::Through, what),
            AttackVerdict::NoVerdict(why) => (Kind::NoVerdict, why),
            AttackVerdict::NotClaimed(why) => (Kind::NotClaimed, why),
        };
        Self {
            line: attack.line,
            program: attack.program.to_owned(),
            name: attack.name.to_owned(),
            who: Who::this(),
            level,
            network: network.as_str().to_owned(),
            claimed: attack.claimed_with(level, network) && kind != Kind::NotClaimed,
            kind,
            words,
        }
    }

    /// Whether a promise was broken, or is not known to hold.
    pub fn fails(&self) -> bool {
        self.claimed && self.kind != Kind::Refused
    }

    pub fn complaint(&self) -> String {
        let what = match self.kind {
            Kind::Through => "got through",
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
