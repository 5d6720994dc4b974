//! Sessions whose code may install packages: their policy gets the hosts of the package index, and their code the
//! variables with which pip and uv find it. The worker makes the environment for the packages, in a directory that only
//! this session and its twins can write, and that is removed with the last of them.

use windlass_protocol::ErrorCode;
use windlass_protocol::api::CreateSession;
use windlass_protocol::confinement::Isolation;
use windlass_protocol::kinds;
use windlass_protocol::policy::{HostRules, Network, Policy};

use super::index::PackageIndex;
use crate::failure::Failure;
use crate::trust::Trust;

/// Lets the code of a session install packages, if the request wants that. Blocks: it reads files and looks up names.
pub(super) fn allow(
    trust: &Trust,
    wanted: &mut CreateSession,
    policy: &mut Policy,
) -> Result<(), Failure> {
    if !wanted.allow_packages {
        return Ok(());
    }
    let refused = |message: String| Failure::new(ErrorCode::BadRequest, message);
    let kind = wanted.worker.as_deref().unwrap_or(kinds::DEFAULT.name);
    if kind != kinds::python::KIND.name {
        return Err(refused(format!("the worker {kind:?} installs no packages; only python does")));
    }
    if wanted.parent.is_some() {
        let message =
            "a child has its parent's policy, so it cannot be allowed to install packages";
        return Err(refused(message.to_owned()));
    }
    let index = PackageIndex::configured(trust).without_logins();
    add_hosts(policy, &index);
    for (name, value) in index.environment() {
        wanted.env.entry(name).or_insert(value);
    }
    Ok(())
}

/// Adds the hosts of the index to the hosts of a policy. A policy with an open network needs none.
fn add_hosts(policy: &mut Policy, index: &PackageIndex) {
    if policy.isolation == Some(Isolation::None) {
        return;
    }
    let mut rules = match &policy.network {
        Network::Open => return,
        Network::None => Vec::new(),
        Network::Hosts(HostRules(rules)) => rules.clone(),
    };
    for rule in index.rules().0 {
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    policy.network = Network::Hosts(HostRules(rules));
}
