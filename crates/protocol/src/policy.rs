//! Policies: what a session may access. This module has the presets, the changes that a client may request,
//! and the parts of a policy. The sandbox enforces policies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::confinement::{Control, Isolation};

mod home;
mod hosts;
mod names;
mod secrets;
mod tools;
pub use home::expand_home;
pub use hosts::{BadHostRule, HostRule, HostRules, normal_host};
pub use names::{ENVIRONMENTS, HOME_DIRECTORIES, TRUSTED_ANYWHERE, TRUSTED_AT_HOME};
pub use secrets::{
    BadSecretName, BadSecretRule, BodyPlaceholder, PLACEHOLDER_END, PLACEHOLDER_START,
    SECRET_IN_TEMPLATE, SECRET_NAME_CHARS_MAX, SecretName, SecretPosition, SecretRule,
    SecretRuleSet, SecretScheme, SecretTarget,
};
pub use tools::{BadToolRule, ToolRule};

/// Maximum number of entries in one list of a policy (hidden paths, host rules and others). A longer list is
/// refused.
pub const LIST_MAX: usize = 256;

/// Maximum bytes of an entry in such a list: the longest path that the kernel accepts.
pub const ENTRY_BYTES_MAX: usize = 4096;

/// A predefined policy.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Read the system and the workspace. Write only a private `/tmp`. No network.
    ReadOnly,
    /// Read the system. Write the workspace and a private `/tmp`. No network.
    #[default]
    Workspace,
    /// Read and write what the user can, except hidden paths. The network is open.
    Open,
}

impl Preset {
    pub const ALL: [Self; 3] = [Self::ReadOnly, Self::Workspace, Self::Open];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::Workspace => "workspace",
            Self::Open => "open",
        }
    }
}

/// The port of the egress proxy inside the session's network namespace.
pub const PROXY_PORT: u16 = 3128;

/// The policy that a client requests: a preset, and the differences from it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyRequest {
    /// Default: `workspace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<Preset>,
    /// Default: the strongest level that the machine supports, but never `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Readable paths, instead of the preset's. Absolute, or `~/...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readable: Option<Vec<String>>,
    /// Writable paths, in addition to the preset's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writable: Vec<String>,
    /// Hidden paths, in addition to the preset's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<String>,
    /// Entries to remove from the preset's hidden and protected lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shown: Vec<String>,
    /// The network access, instead of the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Default: `local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_sockets: Option<UnixSockets>,
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Variables of the node's environment that the code gets, in addition to the default ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
    /// Tools of the node's MCP servers that the code may call: `files.read`, `files.*`, `*`. Default: none.
    /// Tools that a client offers to its own sessions need no rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolRule>,
    /// Where the egress proxy may send secrets of the node. The hosts of these rules are allowed too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRule>,
    /// Controls without which the session does not start, instead of the preset's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<Vec<Control>>,
}

/// A complete policy, without defaults to fill in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
pub struct Policy {
    pub preset: Preset,
    /// Absent: the strongest level that the machine supports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Readable paths, in addition to the workspace. `/` is the whole system.
    pub readable: Vec<String>,
    pub workspace: WorkspaceAccess,
    /// Writable paths, in addition to the workspace and the private directories.
    pub writable: Vec<String>,
    /// Hidden paths. They cannot be read, even below a readable path.
    pub hidden: Vec<String>,
    /// Names directly below a writable root that can be read, but not written, replaced or created.
    pub protected: Vec<String>,
    pub network: Network,
    #[serde(default, skip_serializing_if = "UnixSockets::is_default")]
    pub unix_sockets: UnixSockets,
    pub limits: Limits,
    /// Variables of the node's environment that the code gets, in addition to the default ones.
    pub environment: Vec<String>,
    /// Tools of the node's MCP servers that the code may call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolRule>,
    /// Where the egress proxy may send secrets of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretRule>,
    /// Controls without which the session does not start.
    pub required: Vec<Control>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceAccess {
    Read,
    Write,
}

/// The network access of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// No network.
    None,
    /// Only these hosts, through the node's egress proxy.
    Hosts(HostRules),
    /// All hosts that the machine can reach.
    Open,
}

/// Which Unix sockets the code can create. Connected pairs are always allowed.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum UnixSockets {
    /// Named sockets in private directories, and abstract sockets. Only at isolation level `full`.
    #[default]
    Local,
    /// No Unix sockets. Then no socket of another process can be reached, at any level and on any kernel.
    None,
}

impl UnixSockets {
    pub const ALL: [Self; 2] = [Self::Local, Self::None];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::None => "none",
        }
    }

    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The resource limits of a session. Absent: Windlass sets no limit.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ToSchema,
)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of all processes together, including the private `/tmp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// CPU time: 100 is one core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<u32>,
    /// Number of processes and threads at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Number of open files of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u32>,
    /// The size of the largest file that the session can write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
    /// By how much the workspace may grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// The size of the private `/tmp`. `/dev/shm` has the same size in addition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tmp_bytes: Option<u64>,
    /// How long the session may live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_s: Option<u64>,
}

impl Limits {
    /// The limits of every preset.
    pub const DEFAULT: Self = Self {
        memory_bytes: Some(4 << 30),
        cpu_percent: None,
        processes: Some(512),
        open_files: Some(4096),
        file_bytes: Some(8 << 30),
        disk_bytes: Some(16 << 30),
        tmp_bytes: Some(1 << 30),
        wall_s: None,
    };

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These limits, completed with `others`.
    pub fn or(self, others: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.or(others.memory_bytes),
            cpu_percent: self.cpu_percent.or(others.cpu_percent),
            processes: self.processes.or(others.processes),
            open_files: self.open_files.or(others.open_files),
            file_bytes: self.file_bytes.or(others.file_bytes),
            disk_bytes: self.disk_bytes.or(others.disk_bytes),
            tmp_bytes: self.tmp_bytes.or(others.tmp_bytes),
            wall_s: self.wall_s.or(others.wall_s),
        }
    }
}

/// A limit that a session reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Memory,
    Processes,
    Disk,
    WallTime,
}

impl Limit {
    /// The name in a turn's error, for example `limit: memory`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "limit: memory",
            Self::Processes => "limit: processes",
            Self::Disk => "limit: disk",
            Self::WallTime => "limit: wall time",
        }
    }
}

/// Why a policy request is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("the list {list} has more than {LIST_MAX} entries")]
    TooLong { list: &'static str },
    #[error("an entry of the list {list} is longer than {ENTRY_BYTES_MAX} bytes")]
    EntryTooLong { list: &'static str },
    #[error("the path {path:?} in the list {list} must be absolute or start with ~/")]
    NotAbsolute { list: &'static str, path: String },
    #[error("the limit {limit} is 0; leave it out or set it to at least 1")]
    Zero { limit: &'static str },
    #[error(transparent)]
    Secret(#[from] BadSecretRule),
    #[error(
        "secrets need a list of hosts as network access: with an open network, requests do not go through the \
         proxy that inserts secrets"
    )]
    SecretsWithOpenNetwork,
}

impl PolicyRequest {
    /// The complete policy of the request.
    pub fn resolve(&self) -> Result<Policy, PolicyError> {
        self.check()?;
        let mut policy = Policy::of(self.preset.unwrap_or_default());
        policy.isolation = self.isolation;
        if let Some(readable) = &self.readable {
            policy.readable.clone_from(readable);
        }
        policy.writable.extend(self.writable.iter().cloned());
        policy.hidden.extend(self.hidden.iter().cloned());
        policy.hidden.retain(|path| !self.shown.contains(path));
        policy.protected.retain(|name| !self.shown.contains(name));
        if let Some(network) = &self.network {
            policy.network.clone_from(network);
        }
        policy.unix_sockets = self.unix_sockets.unwrap_or(policy.unix_sockets);
        policy.limits = self.limits.or(policy.limits);
        policy.environment.extend(self.environment.iter().cloned());
        policy.tools.clone_from(&self.tools);
        policy.set_secrets(self.secrets.clone())?;
        match (&self.required, self.isolation) {
            (Some(required), _) => policy.required.clone_from(required),
            // The client requests `none` by name and lists no required controls, so none are required.
            (None, Some(Isolation::None)) => policy.required.clear(),
            (None, _) => {}
        }
        Ok(policy)
    }

    fn check(&self) -> Result<(), PolicyError> {
        let empty = Vec::new();
        let readable = self.readable.as_ref().unwrap_or(&empty);
        let paths =
            [("readable", readable), ("writable", &self.writable), ("hidden", &self.hidden)];
        for (list, paths) in paths {
            let relative = |path: &&String| {
                !path.starts_with('/') && !path.starts_with("~/") && path.as_str() != "~"
            };
            if let Some(path) = paths.iter().find(relative) {
                return Err(PolicyError::NotAbsolute { list, path: path.clone() });
            }
        }
        let hosts = match &self.network {
            Some(Network::Hosts(HostRules(hosts))) => hosts.len(),
            _ => 0,
        };
        let lengths = [
            ("readable", readable.len()),
            ("writable", self.writable.len()),
            ("hidden", self.hidden.len()),
            ("shown", self.shown.len()),
            ("environment", self.environment.len()),
            ("tools", self.tools.len()),
            ("secrets", self.secrets.len()),
            ("network", hosts),
        ];
        if let Some((list, _)) = lengths.into_iter().find(|(_, length)| *length > LIST_MAX) {
            return Err(PolicyError::TooLong { list });
        }
        self.check_entries(readable)?;
        let limits = &self.limits;
        let zeros = [
            ("memory_bytes", limits.memory_bytes == Some(0)),
            ("cpu_percent", limits.cpu_percent == Some(0)),
            ("processes", limits.processes == Some(0)),
            ("open_files", limits.open_files == Some(0)),
            // A tmpfs of the size 0 has no limit.
            ("tmp_bytes", limits.tmp_bytes == Some(0)),
            ("wall_s", limits.wall_s == Some(0)),
        ];
        zeros
            .into_iter()
            .find(|(_, zero)| *zero)
            .map_or(Ok(()), |(limit, _)| Err(PolicyError::Zero { limit }))
    }

    fn check_entries(&self, readable: &[String]) -> Result<(), PolicyError> {
        let lists = [
            ("readable", readable),
            ("writable", &self.writable),
            ("hidden", &self.hidden),
            ("shown", &self.shown),
            ("environment", &self.environment),
        ];
        let is_long = |list: &[String]| list.iter().any(|entry| entry.len() > ENTRY_BYTES_MAX);
        lists
            .into_iter()
            .find(|(_, list)| is_long(list))
            .map_or(Ok(()), |(list, _)| Err(PolicyError::EntryTooLong { list }))
    }
}

impl Policy {
    pub fn of(preset: Preset) -> Self {
        let (workspace, writable, network) = match preset {
            Preset::ReadOnly => (WorkspaceAccess::Read, vec![], Network::None),
            Preset::Workspace => (WorkspaceAccess::Write, vec![], Network::None),
            Preset::Open => (WorkspaceAccess::Write, vec!["/".to_owned()], Network::Open),
        };
        Self {
            preset,
            isolation: None,
            readable: vec!["/".to_owned()],
            workspace,
            writable,
            hidden: HIDDEN.iter().copied().map(str::to_owned).collect(),
            protected: names::protected().map(str::to_owned).collect(),
            network,
            unix_sockets: UnixSockets::default(),
            limits: Limits::DEFAULT,
            environment: Vec::new(),
            tools: Vec::new(),
            secrets: Vec::new(),
            required: Control::REQUIRED.to_vec(),
        }
    }

    /// Sets the secret rules, and allows their hosts.
    fn set_secrets(&mut self, rules: Vec<SecretRule>) -> Result<(), PolicyError> {
        rules.iter().try_for_each(SecretRule::check)?;
        if !rules.is_empty() {
            let mut hosts = match &mut self.network {
                Network::None => Vec::new(),
                Network::Hosts(HostRules(hosts)) => std::mem::take(hosts),
                Network::Open => return Err(PolicyError::SecretsWithOpenNetwork),
            };
            for SecretTarget { host, port, .. } in rules.iter().map(|rule| &rule.to) {
                if !hosts.iter().any(|allowed| allowed.matches(host, *port)) {
                    hosts.push(HostRule {
                        host: host.clone(),
                        any_below: false,
                        port: Some(*port),
                        address: None,
                    });
                }
            }
            self.network = Network::Hosts(HostRules(hosts));
        }
        self.secrets = rules;
        Ok(())
    }
}

/// Paths that usually contain secrets. The node adds its own state and runtime directories.
pub const HIDDEN: &[&str] = &[
    // Keys for other machines, and for signing.
    "~/.ssh",
    "~/.gnupg",
    "~/.pki",
    "~/.age",
    // Cloud and cluster credentials.
    "~/.aws",
    "~/.azure",
    "~/.kube",
    "~/.docker",
    "~/.oci",
    "~/.terraform.d",
    "~/.vault-token",
    "~/.boto",
    "~/.s3cfg",
    // Settings of programs, many of them with tokens: gcloud, gh, op, rclone and browsers.
    "~/.config",
    "~/.local/share/keyrings",
    "~/.local/share/kwalletd",
    "~/.password-store",
    // Package registries and version control.
    "~/.netrc",
    "~/.git-credentials",
    "~/.npmrc",
    "~/.pypirc",
    "~/.cargo/credentials",
    "~/.cargo/credentials.toml",
    "~/.gem/credentials",
    "~/.m2/settings.xml",
    "~/.gradle/gradle.properties",
    "~/.pgpass",
    "~/.my.cnf",
    // Agents: logins and conversations.
    "~/.claude",
    "~/.claude.json",
    "~/.codex",
    "~/.gemini",
    "~/.cursor",
    "~/.aider.conf.yml",
    "~/.local/share/opencode",
    // Browsers and mail.
    "~/.mozilla",
    "~/.thunderbird",
    "~/.cache",
    "~/snap",
    "~/.var/app",
    // Shell and REPL histories.
    "~/.bash_history",
    "~/.zsh_history",
    "~/.python_history",
    "~/.local/share/fish",
    // Secrets of the machine, for a node that runs as root.
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/kubernetes",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/kubelet",
    "/var/lib/systemd/coredump",
    "/var/spool",
    "/var/log",
    "/boot",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_changes_what_it_names_and_leaves_the_rest() {
        let request: PolicyRequest = serde_json::from_str(
            r#"{"network": {"hosts": ["pypi.org"]}, "hidden": ["/srv/keys"], "shown": ["~/.aws"],
                "limits": {"processes": 8}}"#,
        )
        .unwrap();
        let policy = request.resolve().unwrap();
        assert_eq!(
            policy.network,
            Network::Hosts(HostRules(vec![HostRule::parse("pypi.org").unwrap()]))
        );
        assert!(policy.hidden.contains(&"/srv/keys".to_owned()));
        assert!(!policy.hidden.contains(&"~/.aws".to_owned()));
        assert_eq!(policy.limits.processes, Some(8));
        assert_eq!(policy.limits.memory_bytes, Limits::DEFAULT.memory_bytes);
        assert_eq!(policy.workspace, WorkspaceAccess::Write);
        assert_eq!(policy.unix_sockets, UnixSockets::Local);
    }

    #[test]
    fn a_policy_that_was_stored_before_there_were_unix_sockets_in_it_is_read() {
        let mut policy = Policy::of(Preset::Workspace);
        let stored = serde_json::to_string(&policy).unwrap();
        assert!(!stored.contains("unix_sockets"));
        assert_eq!(serde_json::from_str::<Policy>(&stored).unwrap(), policy);
        policy.unix_sockets = UnixSockets::None;
        let stored = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&stored).unwrap(), policy);
    }

    #[test]
    fn the_hosts_of_secret_rules_are_allowed() {
        let resolved = |network: &str| {
            let request = format!(
                r#"{{"network": {network}, "secrets": [
                    {{"name": "K", "to": "https://a.test/v1"}}, {{"name": "K", "to": "http://b.test:81"}}]}}"#
            );
            serde_json::from_str::<PolicyRequest>(&request).unwrap().resolve()
        };
        let network = |rules: &[&str]| {
            let rules = rules.iter().map(|rule| HostRule::parse(rule).unwrap());
            Network::Hosts(HostRules(rules.collect()))
        };
        let policy = resolved("\"none\"").unwrap();
        assert_eq!(policy.network, network(&["a.test:443", "b.test:81"]));
        let policy = resolved(r#"{"hosts": ["a.test=10.0.0.1"]}"#).unwrap();
        assert_eq!(policy.network, network(&["a.test=10.0.0.1", "b.test:81"]));
        assert_eq!(resolved("\"open\""), Err(PolicyError::SecretsWithOpenNetwork));
        let stored = serde_json::to_string(&policy).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&stored).unwrap(), policy);
    }

    #[test]
    fn a_request_that_is_no_policy_says_why() {
        let refused = |request: PolicyRequest| request.resolve().unwrap_err().to_string();
        let hidden = vec!["keys".to_owned()];
        assert!(refused(PolicyRequest { hidden, ..Default::default() }).contains("keys"));
        let limits = Limits { processes: Some(0), ..Limits::default() };
        assert!(refused(PolicyRequest { limits, ..Default::default() }).contains("processes"));
        let limits = Limits { tmp_bytes: Some(0), ..Limits::default() };
        assert!(refused(PolicyRequest { limits, ..Default::default() }).contains("tmp_bytes"));
        let environment = vec![String::new(); LIST_MAX + 1];
        assert!(
            refused(PolicyRequest { environment, ..Default::default() }).contains("environment")
        );
    }
}
