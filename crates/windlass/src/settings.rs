//! The settings of a node: the keys of `[node]` in `config.toml`, with the variable and the option of
//! `windlass node` that set the same. An option wins over a variable, a variable over the file, the file over
//! the default. `docs/reference/configuration.md` is written from the table [`SETTINGS`].

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use windlass_node::{Config, HoldMode, Listen, Reach, StartBy, TlsFiles, UidRange};
use windlass_protocol::limits::DEADLINE_MS_MAX;

use crate::duration::{self, Timeout};
use crate::size;

/// One setting.
#[derive(Debug, Clone, Copy)]
pub struct NodeSetting {
    /// The key in `[node]`. The option of `windlass node` is the same with hyphens.
    pub key: &'static str,
    pub form: ValueForm,
    /// Whether `windlass node` has an option for it.
    pub option: bool,
    pub variable: Option<&'static str>,
    /// The value that applies if nothing sets another; empty for none.
    pub default: &'static str,
    pub meaning: &'static str,
    apply: fn(&mut NodeSettings, &str) -> Result<(), String>,
}

impl NodeSetting {
    /// The option of `windlass node`.
    pub fn option_name(&self) -> Option<String> {
        self.option.then(|| format!("--{}", self.key.replace('_', "-")))
    }

    /// Whether the text is a value of this setting; if not, why.
    pub fn check(&self, text: &str) -> Result<(), String> {
        (self.apply)(
            &mut NodeSettings::new(Config::new(PathBuf::new(), PathBuf::new(), PathBuf::new())),
            text,
        )
    }
}

/// How a value is written in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueForm {
    Duration,
    /// A duration, or `never`.
    Timeout,
    Size,
    Address,
    Switch,
    Path,
    Levels,
    UidRange,
    OneOf(&'static [&'static str]),
}

impl ValueForm {
    /// What a value is, for people.
    pub fn describe(self) -> String {
        match self {
            Self::Duration => "a duration: `\"30s\"`, `\"7d\"`".to_owned(),
            Self::Timeout => "a duration, or `\"never\"`".to_owned(),
            Self::Size => "a size: `\"512M\"`, `\"10G\"`, or a number of bytes".to_owned(),
            Self::Address => "`\"ADDRESS:PORT\"`".to_owned(),
            Self::Switch => "`true` or `false`".to_owned(),
            Self::Path => "an absolute path".to_owned(),
            Self::Levels => {
                "a level, or levels by module: `\"debug\"`, `\"info,windlass_node=debug\"`"
                    .to_owned()
            }
            Self::UidRange => "a range of user ids: `\"200000-265535\"`".to_owned(),
            Self::OneOf(words) => {
                words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

/// What the settings set: the configuration of the node, and the files that the command reads itself.
#[derive(Debug)]
pub struct NodeSettings {
    pub config: Config,
    pub environments: Option<PathBuf>,
    pub mcp_config: Option<PathBuf>,
    pub log: String,
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
}

impl NodeSettings {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            environments: None,
            mcp_config: None,
            log: LOG_DEFAULT.to_owned(),
            tls_certificate: None,
            tls_key: None,
        }
    }

    /// Encrypts the TCP door, if the settings name its certificate and its key.
    pub fn encrypt_door(&mut self) -> anyhow::Result<()> {
        let tls = match (self.tls_certificate.take(), self.tls_key.take()) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (Some(_), None) => {
                anyhow::bail!("tls_certificate is set and tls_key is not: {TLS_BOTH}")
            }
            (None, Some(_)) => {
                anyhow::bail!("tls_key is set and tls_certificate is not: {TLS_BOTH}")
            }
        };
        if let Some(listen) = self.config.listen.as_mut() {
            listen.tls = tls;
        }
        Ok(())
    }
}

/// What to do about one of the two settings of TLS without the other.
pub const TLS_BOTH: &str = "set both to encrypt the TCP door, or none";

const LOG_DEFAULT: &str = "info,rmcp=error,rmcp::service=off";
const HOLD: &[&str] = &["auto", "pid-namespace", "subreaper"];
const STARTS: &[&str] = &["exec", "zygote", "pool"];

/// Every setting of `[node]`. `listen_anywhere` comes after `listen`, because it changes that.
pub static SETTINGS: [NodeSetting; 20] = [
    NodeSetting {
        key: "session_idle",
        form: ValueForm::Timeout,
        option: true,
        variable: None,
        default: "1d",
        meaning: "end a session after this long without a client and without a turn",
        apply: |to, text| set(&mut to.config.defaults.idle, timeout(text)),
    },
    NodeSetting {
        key: "deadline",
        form: ValueForm::Timeout,
        option: true,
        variable: None,
        default: "1d",
        meaning: "stop a turn that runs this long; at most 7d",
        apply: |to, text| {
            set(&mut to.config.defaults.deadline, deadline(text).map(Timeout::duration))
        },
    },
    NodeSetting {
        key: "retain_age",
        form: ValueForm::Duration,
        option: true,
        variable: Some("WINDLASS_RETAIN_AGE"),
        default: "7d",
        meaning: "how long to keep journals of ended sessions, and workspaces that the node created",
        apply: |to, text| set(&mut to.config.retention.max_age, plain(duration::parse(text))),
    },
    NodeSetting {
        key: "retain_bytes",
        form: ValueForm::Size,
        option: true,
        variable: Some("WINDLASS_RETAIN_BYTES"),
        default: "10G",
        meaning: "maximum total size of journals and of workspaces of ended sessions; the session that ended \
                  first is removed first",
        apply: |to, text| set(&mut to.config.retention.max_total_bytes, plain(size::parse(text))),
    },
    NodeSetting {
        key: "audit",
        form: ValueForm::Switch,
        option: false,
        variable: None,
        default: "true",
        meaning: "keep an [audit log](../audit-log.md)",
        apply: |to, text| set(&mut to.config.audit.enabled, switch(text)),
    },
    NodeSetting {
        key: "audit_retain_age",
        form: ValueForm::Duration,
        option: false,
        variable: None,
        default: "90d",
        meaning: "how long to keep files of the audit log after their last record",
        apply: |to, text| set(&mut to.config.audit.max_age, plain(duration::parse(text))),
    },
    NodeSetting {
        key: "audit_retain_bytes",
        form: ValueForm::Size,
        option: false,
        variable: None,
        default: "256M",
        meaning: "maximum total size of the audit log; its oldest file is removed first",
        apply: |to, text| set(&mut to.config.audit.max_total_bytes, plain(size::parse(text))),
    },
    NodeSetting {
        key: "listen",
        form: ValueForm::Address,
        option: true,
        variable: None,
        default: "",
        meaning: "also listen on this TCP address; clients need the token. With port 0 the kernel chooses a port",
        apply: |to, text| {
            let address: SocketAddr = text.parse().map_err(|_| ADDRESS_FORM.to_owned())?;
            to.config.listen = Some(Listen { address, reach: Reach::ThisMachine, tls: None });
            Ok(())
        },
    },
    NodeSetting {
        key: "listen_anywhere",
        form: ValueForm::Switch,
        option: true,
        variable: None,
        default: "false",
        meaning: "allow `listen` to be an address that other machines can reach; the traffic is encrypted only with \
                  `tls_certificate` and `tls_key`",
        apply: |to, text| {
            let anywhere = switch(text)?;
            if let Some(listen) = to.config.listen.as_mut().filter(|_| anywhere) {
                listen.reach = Reach::Anywhere;
            }
            Ok(())
        },
    },
    NodeSetting {
        key: "tls_certificate",
        form: ValueForm::Path,
        option: true,
        variable: None,
        default: "",
        meaning: "the PEM file with the certificate chain of the TCP door: clients use `https` then. The node reads a \
                  renewed file without a restart",
        apply: |to, text| set(&mut to.tls_certificate, Ok(Some(PathBuf::from(text)))),
    },
    NodeSetting {
        key: "tls_key",
        form: ValueForm::Path,
        option: true,
        variable: None,
        default: "",
        meaning: "the PEM file with the private key of `tls_certificate`; only you may be able to read it",
        apply: |to, text| set(&mut to.tls_key, Ok(Some(PathBuf::from(text)))),
    },
    NodeSetting {
        key: "idle_exit",
        form: ValueForm::Timeout,
        option: true,
        variable: None,
        default: "never",
        meaning: "end the node after this long without a session and without a client",
        apply: |to, text| set(&mut to.config.idle_exit, timeout(text)),
    },
    NodeSetting {
        key: "start",
        form: ValueForm::OneOf(STARTS),
        option: false,
        variable: Some("WINDLASS_START"),
        default: "pool",
        meaning: "the fastest way to start a worker: run its program, fork it from a zygote, or take a pooled one",
        apply: |to, text| {
            let start = StartBy::parse(text).ok_or_else(|| one_of(STARTS));
            set(&mut to.config.start, start)
        },
    },
    NodeSetting {
        key: "environments",
        form: ValueForm::Path,
        option: false,
        variable: Some("WINDLASS_ENVIRONMENTS"),
        default: "environments.json beside this file",
        meaning: "the file that lists the interpreters with pooled workers",
        apply: |to, text| set(&mut to.environments, Ok(Some(PathBuf::from(text)))),
    },
    NodeSetting {
        key: "mcp_config",
        form: ValueForm::Path,
        option: true,
        variable: Some("WINDLASS_MCP_CONFIG"),
        default: "mcp.json beside this file",
        meaning: "the file that lists the MCP servers whose tools sessions may call; `/dev/null` for none",
        apply: |to, text| set(&mut to.mcp_config, Ok(Some(PathBuf::from(text)))),
    },
    NodeSetting {
        key: "log",
        form: ValueForm::Levels,
        option: false,
        variable: Some("WINDLASS_LOG"),
        default: LOG_DEFAULT,
        meaning: "what the node writes to its log",
        apply: |to, text| {
            check_levels(text)?;
            set(&mut to.log, Ok(text.to_owned()))
        },
    },
    NodeSetting {
        key: "hold",
        form: ValueForm::OneOf(HOLD),
        option: true,
        variable: None,
        default: "auto",
        meaning: "how keepers keep track of their processes: `auto` uses a pid namespace if the machine allows it",
        apply: |to, text| {
            let mode = match text {
                "auto" => Ok(HoldMode::Auto),
                "pid-namespace" => Ok(HoldMode::PidNamespace),
                "subreaper" => Ok(HoldMode::Subreaper),
                _ => Err(one_of(HOLD)),
            };
            set(&mut to.config.hold, mode)
        },
    },
    NodeSetting {
        key: "session_uids",
        form: ValueForm::UidRange,
        option: false,
        variable: Some("WINDLASS_SESSION_UIDS"),
        default: "",
        meaning: "give each session a user id of its own from this range; only a node that root runs can do that",
        apply: |to, text| set(&mut to.config.session_uids, plain(UidRange::parse(text)).map(Some)),
    },
    NodeSetting {
        key: "node_grace",
        form: ValueForm::Duration,
        option: true,
        variable: None,
        default: "1m",
        meaning: "how long keepers wait for a new node before they end their session",
        apply: |to, text| set(&mut to.config.keepers.node_grace, plain(duration::parse(text))),
    },
    NodeSetting {
        key: "keeper_patience",
        form: ValueForm::Duration,
        option: true,
        variable: None,
        default: "40s",
        meaning: "how long to wait for a reply of a keeper before it counts as lost",
        apply: |to, text| set(&mut to.config.keepers.patience, plain(duration::parse(text))),
    },
];

const ADDRESS_FORM: &str = "an address is ADDRESS:PORT, for example 127.0.0.1:8040";

fn set<T>(to: &mut T, value: Result<T, String>) -> Result<(), String> {
    *to = value?;
    Ok(())
}

fn plain<T, E: std::error::Error>(value: Result<T, E>) -> Result<T, String> {
    value.map_err(|error| error.to_string())
}

fn switch(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| "the value is not true or false".to_owned())
}

fn timeout(text: &str) -> Result<Option<std::time::Duration>, String> {
    plain(duration::parse_timeout(text)).map(Timeout::duration)
}

/// Parses a deadline within the allowed range.
pub fn deadline(text: &str) -> Result<Timeout, String> {
    let deadline = plain(duration::parse_timeout(text))?;
    match deadline.duration() {
        Some(longest) if duration::millis(longest) > DEADLINE_MS_MAX => {
            Err("the maximum deadline is 7d".to_owned())
        }
        _ => Ok(deadline),
    }
}

/// Levels of the log. A bare word that is no level would be taken as the name of a module, and silence all others.
fn check_levels(text: &str) -> Result<(), String> {
    let is_bare = |part: &&str| !part.is_empty() && !part.contains(['=', '[']);
    for part in text.split(',').map(str::trim).filter(is_bare) {
        if part.parse::<LevelFilter>().is_err() {
            return Err(format!(
                "{part:?} is no level: levels are error, warn, info, debug, trace and off"
            ));
        }
    }
    EnvFilter::try_new(text).map_err(|error| error.to_string()).map(drop)
}

fn one_of(words: &[&str]) -> String {
    format!("the value is not one of {}", words.join(", "))
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Default,
    File,
    Variable(&'static str),
    Option,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File => f.write_str("file"),
            Self::Variable(name) => write!(f, "environment ({name})"),
            Self::Option => f.write_str("option"),
        }
    }
}

/// A setting with the value that applies.
#[derive(Debug, Clone)]
pub struct Effective {
    pub setting: &'static NodeSetting,
    pub value: String,
    pub source: Source,
}

/// The value of each setting: of the option, else the variable, else the file, else the default. An empty
/// variable counts as unset.
pub fn resolve(
    option: impl Fn(&str) -> Option<String>,
    variable: impl Fn(&str) -> Option<OsString>,
    file: impl Fn(&str) -> Option<String>,
) -> Vec<Effective> {
    let of_variable = |name: &'static str| {
        let value = variable(name).filter(|value| !value.is_empty())?;
        Some((value.to_string_lossy().into_owned(), Source::Variable(name)))
    };
    let effective = |setting: &'static NodeSetting| {
        let (value, source) = option(setting.key)
            .map(|value| (value, Source::Option))
            .or_else(|| setting.variable.and_then(of_variable))
            .or_else(|| Some((file(setting.key)?, Source::File)))
            .unwrap_or_else(|| (setting.default.to_owned(), Source::Default));
        Effective { setting, value, source }
    };
    SETTINGS.iter().map(effective).collect()
}

/// Applies values that were set. The defaults are those of [`Config::new`] already, and those of the callers.
pub fn apply(values: &[Effective], to: &mut NodeSettings) -> anyhow::Result<()> {
    for Effective { setting, value, source } in values {
        let named = match source {
            Source::Default => continue,
            Source::File => format!("{} in the configuration file", setting.key),
            Source::Variable(name) => (*name).to_owned(),
            Source::Option => setting.option_name().unwrap_or_default(),
        };
        (setting.apply)(to, value).map_err(|why| anyhow::anyhow!("{named} is {value:?}: {why}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> NodeSettings {
        NodeSettings::new(Config::new(PathBuf::new(), PathBuf::new(), PathBuf::new()))
    }

    #[test]
    fn each_default_of_the_table_is_the_default_of_the_node() {
        let usual = format!("{:?}", settings().config);
        for setting in SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
            let mut changed = settings();
            (setting.apply)(&mut changed, setting.default).unwrap();
            assert_eq!(format!("{:?}", changed.config), usual, "{}", setting.key);
        }
    }

    #[test]
    fn a_wrong_value_is_refused_with_the_reason() {
        for (key, text, why) in [
            ("session_idle", "soon", "a duration is"),
            ("deadline", "8d", "the maximum deadline is 7d"),
            ("retain_age", "never", "a duration is"),
            ("retain_bytes", "much", "a size is"),
            ("listen", "8040", "an address is"),
            ("listen_anywhere", "yes", "not true or false"),
            ("start", "fast", "not one of exec, zygote, pool"),
            ("hold", "tight", "not one of auto"),
            ("session_uids", "1000-2000", "the least one for sessions is 65536"),
            ("log", "a=b=c", ""),
            ("log", "inof", "\"inof\" is no level"),
            ("log", "info,bogus level", "\"bogus level\" is no level"),
        ] {
            let setting = SETTINGS.iter().find(|setting| setting.key == key).unwrap();
            let error = setting.check(text).unwrap_err();
            assert!(error.contains(why), "{key}: {error}");
        }
    }

    #[test]
    fn the_door_is_encrypted_only_with_certificate_and_key() {
        let (certificate, key) = ("/tls/door.pem", "/tls/door.key");
        for (listens, certificate, key, encrypted) in [
            (true, Some(certificate), Some(key), Ok(true)),
            (true, None, None, Ok(false)),
            (false, Some(certificate), Some(key), Ok(false)),
            (true, Some(certificate), None, Err(())),
            (false, None, Some(key), Err(())),
        ] {
            let mut node = settings();
            let listen = listens.then_some("127.0.0.1:8040");
            for (name, value) in
                [("tls_certificate", certificate), ("tls_key", key), ("listen", listen)]
            {
                let setting = SETTINGS.iter().find(|setting| setting.key == name).unwrap();
                value.map(|value| (setting.apply)(&mut node, value)).transpose().unwrap();
            }
            let done = node.encrypt_door().map_err(drop);
            let tls = node.config.listen.and_then(|listen| listen.tls);
            assert_eq!(done.map(|()| tls.is_some()), encrypted);
        }
    }

    #[test]
    fn an_option_wins_over_a_variable_and_that_over_the_file() {
        let in_file = |key: &str| {
            ["deadline", "retain_age", "retain_bytes"].contains(&key).then(|| "3".to_owned())
        };
        let variables = |name: &str| match name {
            "WINDLASS_RETAIN_AGE" | "WINDLASS_RETAIN_BYTES" => Some(OsString::from("2")),
            "WINDLASS_START" => Some(OsString::new()),
            _ => None,
        };
        let options = |key: &str| (key == "retain_bytes").then(|| "1".to_owned());
        let values = resolve(options, variables, in_file);
        let of = |key: &str| {
            let found = values.iter().find(|value| value.setting.key == key).unwrap();
            (found.value.as_str(), found.source)
        };
        assert_eq!(of("retain_bytes"), ("1", Source::Option));
        assert_eq!(of("retain_age"), ("2", Source::Variable("WINDLASS_RETAIN_AGE")));
        assert_eq!(of("deadline"), ("3", Source::File));
        assert_eq!(of("session_idle"), ("1d", Source::Default));
        assert_eq!(of("start"), ("pool", Source::Default));
        let error = apply(&values, &mut settings()).unwrap_err().to_string();
        assert!(
            error.starts_with("deadline in the configuration file is \"3\": a duration"),
            "{error}"
        );
    }
}
