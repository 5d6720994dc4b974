//! What `windlass repl` says at its start: the interpreter, the environment, and what the session may access.

use windlass_protocol::api::Session;
use windlass_protocol::policy::{HostRules, Network, Policy, WorkspaceAccess};

use crate::counted::counted;

/// Maximum number of hosts and directories that the banner names.
const NAMED_MAX: usize = 3;

/// The lines of the banner.
pub fn lines(session: &Session) -> Vec<String> {
    let worker = if session.worker.is_empty() { &session.kind } else { &session.worker };
    let mut lines = vec![format!("{worker}; session {}; Ctrl-D exits", session.id)];
    if let Some(policy) = &session.policy {
        lines.push(format!("workspace {}; {}", session.workspace, access(policy)));
    }
    lines
}

fn access(policy: &Policy) -> String {
    let network = match &policy.network {
        Network::None => "no network".to_owned(),
        Network::Open => "any network".to_owned(),
        Network::Hosts(HostRules(rules)) => {
            format!("network: {}", named(rules, "more host", "more hosts"))
        }
    };
    let more = || named(&policy.writable, "more directory", "more directories");
    let writes = match (policy.workspace, policy.writable.is_empty()) {
        (WorkspaceAccess::Write, true) => "writes the workspace".to_owned(),
        (WorkspaceAccess::Write, false) => format!("writes the workspace, {}", more()),
        (WorkspaceAccess::Read, true) => "writes only private temporary directories".to_owned(),
        (WorkspaceAccess::Read, false) => format!("writes {}", more()),
    };
    format!("{writes}; {network}")
}

/// The first names of a list, and how many more there are.
fn named<T: ToString>(all: &[T], one: &str, many: &str) -> String {
    let shown: Vec<String> = all.iter().take(NAMED_MAX).map(T::to_string).collect();
    let shown = shown.join(", ");
    match all.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {}", counted(more, one, many)),
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::policy::{PolicyRequest, Preset};

    use super::*;

    #[test]
    fn the_banner_names_what_the_session_may_write_and_reach() {
        let request = |text: &str| -> Policy {
            serde_json::from_str::<PolicyRequest>(text).unwrap().resolve().unwrap()
        };
        for (policy, expected) in [
            (Policy::of(Preset::Workspace), "writes the workspace; no network"),
            (Policy::of(Preset::ReadOnly), "writes only private temporary directories; no network"),
            (
                request(r#"{"writable": ["/a"], "network": {"hosts": ["example.org:443"]}}"#),
                "writes the workspace, /a; network: example.org:443",
            ),
            (
                request(r#"{"writable": ["/a", "/b", "/c", "/d"], "network": "open"}"#),
                "writes the workspace, /a, /b, /c and 1 more directory; any network",
            ),
        ] {
            assert_eq!(access(&policy), expected);
        }
    }
}
