//! What a new session can do, in one line for the model: interpreter, writable directories, network and packages.

use windlass_protocol::api::Session;
use windlass_protocol::confinement::Isolation;
use windlass_protocol::kinds;
use windlass_protocol::packages::PackageEnvironment;
use windlass_protocol::policy::{HostRules, Network, Policy, WorkspaceAccess};

/// How packages get into a Python session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PackageWays {
    /// Only by the request for the session.
    Named,
    /// Its code can also install them.
    Installed,
}

impl PackageWays {
    pub fn of(allow_packages: bool) -> Self {
        if allow_packages { Self::Installed } else { Self::Named }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Named => {
                "packages: installed ones only, pip reaches no index; name others in `packages`"
            }
            Self::Installed => "packages: `pip install` works and lasts as long as the session",
        }
    }

    /// How others get into a session that has packages of its request.
    fn besides(self) -> &'static str {
        match self {
            Self::Named => "pip reaches no index; a new session gets others by `packages`",
            Self::Installed => "`pip install` works and lasts as long as the session",
        }
    }
}

/// Maximum number of entries of a list that are named.
const NAMED_MAX: usize = 6;

/// The line about a session that was created with `interpreter`, if the client named one, or in an environment.
pub(crate) fn of(
    session: &Session,
    interpreter: Option<&str>,
    environment: Option<&PackageEnvironment>,
    packages: PackageWays,
) -> String {
    let mut parts = Vec::new();
    let interpreter = interpreter.or(environment.map(|made| &*made.python));
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
        parts.push(match environment {
            Some(made) => format!("packages: {}; {}", requested(made), packages.besides()),
            None => packages.text().to_owned(),
        });
    }
    parts.join("; ")
}

/// The packages that the request for an environment names.
fn requested(environment: &PackageEnvironment) -> String {
    listed(environment.packages.iter().map(String::as_str))
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
    fn the_packages_of_the_request_are_named() {
        let made = serde_json::json!({
            "name": "e", "state": "ready", "packages": ["six", "numpy>=2"], "python": "/usr/bin/python3.12",
            "directory": "/e", "created_at_ms": 1, "used_at_ms": 1,
        });
        let made: PackageEnvironment = serde_json::from_value(made).unwrap();
        assert_eq!(requested(&made), "six, numpy>=2");
        assert!(!PackageWays::Named.besides().contains("installed ones"));
    }

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
