//! The network settings that attacks run with.

use std::fmt;

use windlass_client::protocol::policy::{BadHostRule, HostRule, HostRules, Network};

/// The only host in the list: a name that does not resolve, with a port of this machine that has no listener.
const HOST: &str = "stage.invalid:9=127.0.0.1";

/// The network policy of the sessions that attacks run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkSetting {
    None,
    /// A list of hosts.
    Hosts,
    Open,
}

impl NetworkSetting {
    pub const ALL: [Self; 3] = [Self::None, Self::Hosts, Self::Open];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Hosts => "hosts",
            Self::Open => "open",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.as_str() == text)
    }

    pub(super) fn policy(self) -> Result<Network, BadHostRule> {
        Ok(match self {
            Self::None => Network::None,
            Self::Hosts => Network::Hosts(HostRules(vec![HostRule::parse(HOST)?])),
            Self::Open => Network::Open,
        })
    }
}

impl fmt::Display for NetworkSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
