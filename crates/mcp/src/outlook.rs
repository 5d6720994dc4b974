//! What a new session can do, in one line for the model: interpreter, writable directories, network and packages.

use windlass_protocol::api::Session;
use windlass_protocol::confinement::Isolation;
use windlass_protocol::kinds;
use windlass_protocol::policy::{HostRules, Network, Policy, WorkspaceAccess};

/// How packages get into a Python session.
pub(crate) const PACKAGES: &str = "packages: installed ones only; name others in `packages`";

/// Maximum number of entries of a list that are named.
const NAMED_MAX: usize = 6;

/// The line about a session that was created with `interpreter`, if the client named one.
pub(crate) fn of(session: &Session, interpreter: Option<&str>) -> String {
    let mut parts = Vec::new();
    parts.push(match interpreter {
        Some(interpreter) => format!("{} of {interpreter}", session.kind),
        None => session.kind.clone(),
    });
    if let Some(policy) = &session.policy {
        let level = session.confinement.as_ref().map(|found| found.isolation).or(policy.isolation);
        match level {
            Some(Isolation::None) => parts.push("not confined".to_owned()),
            Some(Isolation::Full | Isolation::Landlock) | None => {
                parts.extend([writable(policy), network(policy)]);
            }
        }
    }
    if session.kind == kinds::DEFAULT.name {
        parts.push(PACKAGES.to_owned());
    }
    parts.join("; ")
}

fn writable(policy: &Policy) -> String {
    let workspace = (policy.workspace == WorkspaceAccess::Write).then_some("its directory");
    let others = policy.writable.iter().map(String::as_str);
    let all = workspace.into_iter().chain(others).chain(["temporary directories"]);
    format!("writes {}", listed(all))
}

fn network(policy: &Policy) -> String {
    match &policy.network {
        Network::None => "no network".to_owned(),
        Network::Open => "network: open".to_owned(),
        Network::Hosts(HostRules(rules)) => {
            let hosts: Vec<String> = rules.iter().map(ToString::to_string).collect();
            format!("network: only {}", listed(hosts.iter().map(String::as_str)))
        }
    }
}

fn listed<'t>(all: impl Iterator<Item = &'t str>) -> String {
    let mut names: Vec<&str> = all.collect();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    let names = names.join(", ");
    if more > 0 { format!("{names} and {more} more") } else { names }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::policy::{HostRule, Preset};

    use super::*;

    #[test]
    fn the_policy_is_said_in_one_line() {
        let mut policy = Policy::of(Preset::Workspace);
        assert_eq!(network(&policy), "no network");
        assert_eq!(writable(&policy), "writes its directory, temporary directories");
        let rule = |number| HostRule::parse(&format!("h{number}.test")).unwrap();
        policy.network = Network::Hosts(HostRules((0..8).map(rule).collect()));
        assert!(network(&policy).ends_with("h5.test and 2 more"), "{}", network(&policy));
        let open = Policy::of(Preset::Open);
        assert_eq!(writable(&open), "writes its directory, /, temporary directories");
        assert_eq!(writable(&Policy::of(Preset::ReadOnly)), "writes temporary directories");
    }
}
