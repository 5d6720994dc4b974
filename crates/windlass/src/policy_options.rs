//! The policy options of every command that creates a session or explains a policy, and the policy request
//! that they produce.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use windlass_protocol::confinement::Isolation;
use windlass_protocol::policy::{
    BadToolRule, HostRule, HostRules, Network, Policy, PolicyRequest, Preset, SecretRule, ToolRule,
    UnixSockets,
};

use crate::terminal::Terminal;
use crate::{node_access, size};

/// The policy of a new session.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "What a new session may access")]
pub struct PolicyOptions {
    /// The preset to start from; default: workspace
    #[arg(long, value_name = "PRESET", value_parser = presets())]
    policy: Option<Preset>,
    /// A file with a policy request as JSON; the other options extend or override it
    #[arg(long, value_name = "FILE")]
    policy_file: Option<PathBuf>,
    /// The isolation level; default: the strongest that this machine supports, never none
    #[arg(long, value_name = "LEVEL", value_parser = levels())]
    isolation: Option<Isolation>,
    /// Allow a host: name, name:port, *.name or name=address; can be repeated
    #[arg(long, value_name = "RULE", value_parser = HostRule::parse)]
    allow_host: Vec<HostRule>,
    /// Send a secret of the node to a URL: NAME=https://api.example.com/v1/; options: ,header=H ,query=Q ,template=T
    /// ,basic_user=U ,env=E ,methods=GET+POST ,body=pass; can be repeated
    #[arg(long, value_name = "RULE", value_parser = SecretRule::parse)]
    secret: Vec<SecretRule>,
    /// Unix sockets that the session may create: local, or none (only connected pairs); default: local
    #[arg(long, value_name = "WHICH", value_parser = unix_sockets())]
    unix_sockets: Option<UnixSockets>,
    /// Make one more directory writable; can be repeated
    #[arg(long, value_name = "PATH")]
    writable: Vec<String>,
    /// Hide one more path; can be repeated
    #[arg(long, value_name = "PATH")]
    hide: Vec<String>,
    /// Do not hide or protect this path or name of the preset; can be repeated
    #[arg(long, value_name = "PATH")]
    show: Vec<String>,
    /// Allow tools of the node's MCP servers: server.tool, server.* or *; can be repeated
    #[arg(long, value_name = "RULE", value_parser = parse_tool_rule)]
    tools: Vec<ToolRule>,
    /// Memory limit of all processes together, for example 512M or 4G
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<u64>,
    /// Maximum number of processes and threads
    #[arg(long, value_name = "N")]
    processes: Option<u32>,
}

impl PolicyOptions {
    /// The policy request of these options. `None` if no option is given.
    pub fn request(&self) -> anyhow::Result<Option<PolicyRequest>> {
        if *self == Self::default() {
            return Ok(None);
        }
        let base = match &self.policy_file {
            Some(file) => read(file)?,
            None => PolicyRequest::default(),
        };
        let here = std::env::current_dir().context("the current directory does not exist")?;
        self.over(base, &here, std::env::home_dir().as_deref()).map(Some)
    }

    /// Says which directories of `--writable` do not exist: the session passes over them, so a typing error would
    /// show only when the code cannot write.
    pub fn note_missing(&self, terminal: &mut Terminal) -> std::io::Result<()> {
        let home = std::env::home_dir().unwrap_or_default();
        let whole = |path: &str| match path.strip_prefix('~') {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                home.join(rest.trim_start_matches('/'))
            }
            _ => PathBuf::from(path),
        };
        let missing = |path: &&String| !node_access::is_remote() && !whole(path).exists();
        for path in self.writable.iter().filter(missing) {
            terminal.note(&format!(
                "--writable {path}: there is no such directory, so nothing there becomes writable"
            ))?;
        }
        Ok(())
    }

    /// The complete policy of these options.
    pub fn resolve(&self) -> anyhow::Result<Policy> {
        Ok(self.request()?.unwrap_or_default().resolve()?)
    }

    fn over(
        &self,
        mut request: PolicyRequest,
        here: &Path,
        home: Option<&Path>,
    ) -> anyhow::Result<PolicyRequest> {
        request.preset = self.policy.or(request.preset);
        request.isolation = self.isolation.or(request.isolation);
        if !self.allow_host.is_empty() {
            request.network = Some(with_hosts(request.network.take(), &self.allow_host));
        }
        request.secrets.extend(self.secret.iter().cloned());
        request.unix_sockets = self.unix_sockets.or(request.unix_sockets);
        let absolute = |path: &String| absolute(path, here);
        request.writable.extend(self.writable.iter().map(absolute));
        request.hidden.extend(self.hide.iter().map(absolute));
        let listed = listed(&request);
        for path in &self.show {
            let Some(found) = as_listed(path, here, home, &listed) else {
                bail!(
                    "--show {path}: the policy neither hides nor protects this path; \
                     `windlass policy show` lists the hidden and protected paths"
                );
            };
            request.shown.push(found);
        }
        request.tools.extend(self.tools.iter().cloned());
        request.limits.memory_bytes = self.memory.or(request.limits.memory_bytes);
        request.limits.processes = self.processes.or(request.limits.processes);
        Ok(request)
    }
}

fn presets() -> impl TypedValueParser<Value = Preset> {
    let find = |name: String| Preset::ALL.into_iter().find(|one| one.as_str() == name);
    PossibleValuesParser::new(Preset::ALL.map(Preset::as_str))
        .map(move |name| find(name).expect("only these names are possible"))
}

fn parse_tool_rule(text: &str) -> Result<ToolRule, BadToolRule> {
    ToolRule::parse(text)
}

fn levels() -> impl TypedValueParser<Value = Isolation> {
    let find = |name: String| Isolation::ALL.into_iter().find(|one| one.as_str() == name);
    PossibleValuesParser::new(Isolation::ALL.map(Isolation::as_str))
        .map(move |name| find(name).expect("only these names are possible"))
}

fn unix_sockets() -> impl TypedValueParser<Value = UnixSockets> {
    let find = |name: String| UnixSockets::ALL.into_iter().find(|one| one.as_str() == name);
    PossibleValuesParser::new(UnixSockets::ALL.map(UnixSockets::as_str))
        .map(move |name| find(name).expect("only these names are possible"))
}

fn read(file: &Path) -> anyhow::Result<PolicyRequest> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the policy {}", file.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not a valid policy request", file.display()))
}

/// The hosts of the policy file and of the options.
fn with_hosts(network: Option<Network>, more: &[HostRule]) -> Network {
    let mut rules = match network {
        Some(Network::Hosts(HostRules(rules))) => rules,
        Some(Network::None | Network::Open) | None => Vec::new(),
    };
    rules.extend(more.iter().cloned());
    Network::Hosts(HostRules(rules))
}

/// Makes a path absolute, because the node has another working directory. The node expands `~/`.
fn absolute(path: &String, here: &Path) -> String {
    if path.starts_with("~/") || path == "~" {
        return path.clone();
    }
    here.join(path).display().to_string()
}

/// Every path and name that `--show` accepts.
fn listed(request: &PolicyRequest) -> Vec<String> {
    let policy = Policy::of(request.preset.unwrap_or_default());
    policy.hidden.into_iter().chain(policy.protected).chain(request.hidden.clone()).collect()
}

/// The form of `path` that the lists contain: as typed, absolute, or below `~`. The shell has already
/// expanded `~`.
fn as_listed(path: &str, here: &Path, home: Option<&Path>, listed: &[String]) -> Option<String> {
    let path = path.trim_end_matches('/').to_owned();
    let whole = absolute(&path, here);
    let below_home = home
        .and_then(|home| Path::new(&whole).strip_prefix(home).ok())
        .map(|rest| format!("~/{}", rest.display()));
    [Some(path), Some(whole), below_home].into_iter().flatten().find(|form| listed.contains(form))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestCli {
        #[command(flatten)]
        options: PolicyOptions,
    }

    fn request(args: &[&str]) -> anyhow::Result<PolicyRequest> {
        let line = TestCli::try_parse_from(std::iter::once(&"x").chain(args))?;
        let home = Path::new("/people/u");
        line.options.over(PolicyRequest::default(), &home.join("work"), Some(home))
    }

    #[test]
    fn without_options_there_is_no_request() {
        assert_eq!(PolicyOptions::default().request().unwrap(), None);
        assert_eq!(request(&[]).unwrap(), PolicyRequest::default());
    }

    #[test]
    fn each_option_changes_its_part_of_the_request() {
        let asked = request(&[
            "--policy=read-only",
            "--isolation=none",
            "--allow-host=a.org:443",
            "--allow-host=*.b.org",
            "--unix-sockets=none",
            "--writable=out",
            "--hide=/srv/keys",
            "--hide=~/notes",
            "--show=/people/u/.aws",
            "--show=.git",
            "--tools=files.*",
            "--tools=web.get",
            "--memory=512M",
            "--processes=8",
        ])
        .unwrap();
        let expected = serde_json::json!({
            "preset": "read-only",
            "isolation": "none",
            "network": {"hosts": ["a.org:443", "*.b.org"]},
            "unix_sockets": "none",
            "writable": ["/people/u/work/out"],
            "hidden": ["/srv/keys", "~/notes"],
            "shown": ["~/.aws", ".git"],
            "limits": {"memory_bytes": 512 << 20, "processes": 8},
            "tools": ["files.*", "web.get"],
        });
        assert_eq!(serde_json::to_value(asked).unwrap(), expected);
    }

    #[test]
    fn an_invalid_option_is_refused_with_a_reason() {
        for (option, why) in [
            ("--policy=loose", "read-only"),
            ("--isolation=some", "landlock"),
            ("--allow-host=a/b", "host rule"),
            ("--unix-sockets=all", "local"),
            ("--memory=much", "512M"),
            ("--tools=files", "server.tool"),
            ("--show=/etc/motd", "neither hides nor protects"),
        ] {
            let error = format!("{:#}", request(&[option]).unwrap_err());
            assert!(error.contains(why), "{option}: {error}");
        }
    }

    #[test]
    fn options_extend_and_override_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy.json");
        let text = r#"{"preset": "read-only", "network": {"hosts": ["a.org"]},
            "limits": {"processes": 3, "memory_bytes": 7}}"#;
        std::fs::write(&file, text).unwrap();
        let args = ["x", "--processes=9", "--allow-host=b.org", "--policy-file"];
        let args = args.into_iter().map(Into::into).chain([file.into_os_string()]);
        let asked = TestCli::try_parse_from(args).unwrap().options.request().unwrap().unwrap();
        assert_eq!(asked.preset, Some(Preset::ReadOnly));
        assert_eq!(asked.limits.processes, Some(9));
        assert_eq!(asked.limits.memory_bytes, Some(7));
        let Some(Network::Hosts(HostRules(rules))) = asked.network else { panic!("no hosts") };
        assert_eq!(rules.iter().map(HostRule::to_string).collect::<Vec<_>>(), ["a.org", "b.org"]);
    }
}
