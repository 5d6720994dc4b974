//! Combines two restrictions on a call: Codex's settings and the options of the server. Either may
//! forbid something.

use std::path::Path;

use windlass_protocol::confinement::{Control, Isolation};
use windlass_protocol::policy::{Network, Policy, PolicyRequest, Preset, SecretRule};

use super::CallSandbox;

impl CallSandbox {
    /// The sandbox, further restricted by the server's options.
    pub fn within(mut self, options: Option<&PolicyRequest>) -> Self {
        let Some(options) = options else { return self };
        self.policy = match confines_nothing(&self.policy) {
            true => {
                PolicyRequest { preset: options.preset.or(self.policy.preset), ..options.clone() }
            }
            false => both(self.policy, options, self.workspace.as_deref()),
        };
        self
    }
}

fn confines_nothing(codex: &PolicyRequest) -> bool {
    codex.preset == Some(Preset::Open)
        && codex.network == Some(Network::Open)
        && codex.hidden.is_empty()
}

fn both(codex: PolicyRequest, options: &PolicyRequest, workspace: Option<&Path>) -> PolicyRequest {
    let presets = [codex.preset, options.preset].into_iter().flatten();
    let mut hidden = codex.hidden.clone();
    hidden.extend(options.hidden.iter().filter(|path| !codex.hidden.contains(path)).cloned());
    let mut required = codex.required.clone().unwrap_or_else(|| Control::REQUIRED.to_vec());
    let more = options.required.iter().flatten().filter(|more| !required.contains(more)).copied();
    let more: Vec<Control> = more.collect();
    required.extend(more);
    // `shown` may hold names that Codex protects, so only paths are used. A path that Codex denies
    // stays denied.
    let shown = options.shown.iter().filter(|path| path.starts_with(['/', '~']));
    PolicyRequest {
        preset: presets.min_by_key(|preset| looseness(*preset)),
        isolation: codex
            .isolation
            .or(options.isolation.filter(|isolation| *isolation != Isolation::None)),
        readable: readable(&codex, options, workspace),
        writable: writable(&codex, options),
        shown: shown.filter(|path| !codex.hidden.contains(path)).cloned().collect(),
        hidden,
        network: Some(network(&codex, options)),
        // Codex has no settings for these.
        unix_sockets: options.unix_sockets,
        limits: options.limits,
        environment: options.environment.clone(),
        // Codex also calls servers outside of its sandbox, and its user named these tools.
        tools: options.tools.clone(),
        secrets: secrets(&codex, options),
        required: Some(required),
    }
}

/// The secrets of the options, if Codex lets the call use the network. Their hosts would be allowed otherwise.
fn secrets(codex: &PolicyRequest, options: &PolicyRequest) -> Vec<SecretRule> {
    match codex.network {
        Some(Network::Open) => options.secrets.clone(),
        Some(Network::None | Network::Hosts(_)) | None => Vec::new(),
    }
}

fn looseness(preset: Preset) -> u8 {
    match preset {
        Preset::ReadOnly => 0,
        Preset::Workspace => 1,
        Preset::Open => 2,
    }
}

fn network(codex: &PolicyRequest, options: &PolicyRequest) -> Network {
    let of_preset = || options.preset.map(|preset| Policy::of(preset).network);
    match &codex.network {
        Some(Network::Open) => options.network.clone().or_else(of_preset).unwrap_or(Network::Open),
        Some(Network::None | Network::Hosts(_)) | None => Network::None,
    }
}

/// Paths that both lists allow, and paths that Codex protects inside writable directories.
fn readable(
    codex: &PolicyRequest,
    options: &PolicyRequest,
    workspace: Option<&Path>,
) -> Option<Vec<String>> {
    let Some(asked) = &options.readable else { return codex.readable.clone() };
    let Some(allowed) = &codex.readable else { return Some(asked.clone()) };
    let written = |path: &String| {
        workspace.is_some_and(|root| Path::new(path).starts_with(root))
            || is_below(path, &codex.writable)
    };
    let of_codex = allowed.iter().filter(|path| is_below(path, asked) || written(path));
    let of_options = asked.iter().filter(|path| is_below(path, allowed) && !allowed.contains(path));
    Some(of_codex.chain(of_options).cloned().collect())
}

fn writable(codex: &PolicyRequest, options: &PolicyRequest) -> Vec<String> {
    match (options.preset, codex.preset) {
        (None | Some(Preset::Open), _) => codex.writable.clone(),
        (Some(_), Some(Preset::Open)) => options.writable.clone(),
        (Some(_), _) => {
            let allowed = |path: &&String| is_below(path, &options.writable);
            codex.writable.iter().filter(allowed).cloned().collect()
        }
    }
}

fn is_below(path: &str, roots: &[String]) -> bool {
    roots.iter().any(|root| Path::new(path).starts_with(root))
}
