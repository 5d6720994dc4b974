//! The table `[fleet]` of `config.toml`: its keys, what is wrong in it, and what it sets. A node whose table has an
//! error does not start: it would leave its fleet without a word.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml_edit::{Array, Item, TableLike, Value};
use windlass_node::{FleetConfig, LeaseTiming};
use windlass_protocol::NodeName;
use windlass_protocol::enrolment::{FleetSettings, has_password, have_one_login, without_password};
use windlass_protocol::fleet_view::check_labels;

use crate::duration;

/// Maximum number of servers of the store.
const SERVERS_MAX: usize = 32;

/// Maximum length of an address or a URL.
const ADDRESS_CHARS_MAX: usize = 512;

const REPLICAS_DEFAULT: usize = 3;
const LEASE_DEFAULT: Duration = Duration::from_secs(30);
const LOST_AFTER_DEFAULT: Duration = Duration::from_secs(5 * 60);

/// The directory of the credentials in the state directory of the node.
const CREDENTIALS_DEFAULT: &str = "fleet";

/// A key of `[fleet]`.
#[derive(Debug, Clone, Copy)]
pub struct FleetKey {
    pub key: &'static str,
    /// What a value is, for people.
    pub value: &'static str,
    /// The value that applies without the key; empty if the key is required.
    pub default: &'static str,
    pub meaning: &'static str,
    set: fn(&mut FleetDraft, &Value) -> Result<(), String>,
}

/// The values of a table that is being read.
#[derive(Default)]
struct FleetDraft {
    node: Option<NodeName>,
    servers: Option<Vec<String>>,
    store_ca: Option<PathBuf>,
    replicas: Option<usize>,
    listen: Option<SocketAddr>,
    address: Option<String>,
    credentials: Option<PathBuf>,
    lease: Option<Duration>,
    lost_after: Option<Duration>,
    labels: Option<BTreeMap<String, String>>,
    max_sessions: Option<u64>,
}

/// What the table sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetTable {
    /// Its path of the credentials may be relative: to the state directory of the node.
    pub config: FleetConfig,
}

/// What is wrong in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetTableProblem {
    /// The key; absent if a key is missing.
    pub key: Option<&'static str>,
    pub what: String,
    pub remedy: String,
}

/// Every key of `[fleet]`.
pub static FLEET_KEYS: [FleetKey; 11] = [
    FleetKey {
        key: "node",
        value: "a name: letters, digits, `-` and `_`",
        default: "",
        meaning: "the name of the node in its fleet, which its certificate has too; required",
        set: |to, value| set(&mut to.node, text(value).and_then(node_name)),
    },
    FleetKey {
        key: "servers",
        value: "a list of URLs: `[\"nats://10.0.0.1:4222\"]`",
        default: "",
        meaning: "the servers of the store, NATS JetStream; required. A URL may carry a user and a password: \
                  `nats://USER:PASSWORD@HOST:PORT`; all servers get the same ones. The file must then be private to \
                  you. One `tls://` encrypts the connections with all servers",
        set: |to, value| set(&mut to.servers, servers(value)),
    },
    FleetKey {
        key: "store_ca",
        value: "an absolute path",
        default: "the authorities that the machine trusts",
        meaning: "a PEM file: the only authorities that may sign the certificates of the servers at `tls://`",
        set: |to, value| set(&mut to.store_ca, text(value).and_then(absolute)),
    },
    FleetKey {
        key: "listen",
        value: "`\"ADDRESS:PORT\"`",
        default: "",
        meaning: "where the node listens for the other nodes; required. Only nodes with a certificate of the fleet are served",
        set: |to, value| set(&mut to.listen, text(value).and_then(listen_address)),
    },
    FleetKey {
        key: "address",
        value: "`\"HOST:PORT\"`",
        default: "listen",
        meaning: "where other nodes reach this node",
        set: |to, value| set(&mut to.address, text(value).and_then(host_and_port)),
    },
    FleetKey {
        key: "replicas",
        value: "a number from 1 to 5",
        default: "3",
        meaning: "number of copies that the store keeps of each record; 1 for a store that may be lost. The same on all nodes",
        set: |to, value| set(&mut to.replicas, replicas(value)),
    },
    FleetKey {
        key: "credentials",
        value: "an absolute path",
        default: "fleet in the state directory",
        meaning: "the directory of the node's key and certificate",
        set: |to, value| set(&mut to.credentials, text(value).and_then(absolute)),
    },
    FleetKey {
        key: "lease",
        value: "a duration: `\"30s\"`",
        default: "30s",
        meaning: "how long the node lives for the others without a renewal; from 2s to 5m. The same on all nodes",
        set: |to, value| set(&mut to.lease, text(value).and_then(lease)),
    },
    FleetKey {
        key: "lost_after",
        value: "a duration: `\"5m\"`",
        default: "5m",
        meaning: "how long after the end of its lease a node's sessions are lost; from 10s to 1d. The same on all nodes",
        set: |to, value| set(&mut to.lost_after, text(value).and_then(lost_after)),
    },
    FleetKey {
        key: "labels",
        value: "names and values: `{ zone = \"a\" }`",
        default: "none",
        meaning: "labels of the node: a new session can ask for a node with some of them",
        set: |to, value| set(&mut to.labels, labels(value)),
    },
    FleetKey {
        key: "max_sessions",
        value: "a number from 1",
        default: "one for 16 MiB of memory",
        meaning: "how many sessions the node has at most when other nodes send it new ones",
        set: |to, value| set(&mut to.max_sessions, max_sessions(value)),
    },
];

impl FleetTable {
    /// The table, or everything that is wrong in it. The caller looks for unknown keys.
    pub fn read(table: &dyn TableLike) -> Result<Self, Vec<FleetTableProblem>> {
        let (mut draft, mut problems) = (FleetDraft::default(), Vec::new());
        for key in &FLEET_KEYS {
            let Some(item) = table.get(key.key) else { continue };
            let set = match item {
                Item::Value(value) => (key.set)(&mut draft, value),
                _ => Err("it is a table".to_owned()),
            };
            if let Err(why) = set {
                let what = format!("`{}` has a wrong value: {why}", key.key);
                let remedy = format!("write {}", key.value);
                problems.push(FleetTableProblem { key: Some(key.key), what, remedy });
            }
        }
        for key in ["node", "servers", "listen"] {
            if table.get(key).is_none() {
                let what = format!("[fleet] has no `{key}`");
                let remedy = "write the table with `windlass fleet init` or `windlass fleet join`";
                problems.push(FleetTableProblem { key: None, what, remedy: remedy.to_owned() });
            }
        }
        match draft.finish() {
            Some(table) if problems.is_empty() => table.checked().map_err(|problem| vec![problem]),
            _ => Err(problems),
        }
    }

    /// The table of a node that makes a fleet or joins one.
    pub fn new(
        node: NodeName,
        address: &str,
        listen: Option<SocketAddr>,
        settings: FleetSettings,
    ) -> Result<Self, String> {
        let address = host_and_port(address.to_owned())?;
        let listen = match listen {
            Some(listen) if listen.port() == 0 => return Err(NO_PORT.to_owned()),
            Some(listen) => listen,
            None => usual_listen(&address)?,
        };
        let servers = checked_servers(settings.servers)?;
        let replicas = checked_replicas(settings.replicas)?;
        let lease = in_range(Duration::from_millis(settings.lease_ms), &LEASE_RANGE)?;
        let lost_after = Duration::from_millis(settings.lost_after_ms);
        let lost_after = in_range(lost_after, &LOST_AFTER_RANGE)?;
        let config = FleetConfig {
            node,
            servers,
            store_ca: None,
            replicas,
            listen,
            address,
            credentials: CREDENTIALS_DEFAULT.into(),
            timing: timing(lease, lost_after),
            labels: BTreeMap::new(),
            max_sessions: None,
        };
        Self { config }.checked().map_err(|problem| format!("{}: {}", problem.what, problem.remedy))
    }

    pub fn has_password(&self) -> bool {
        self.config.servers.iter().any(|url| has_password(url))
    }

    /// The servers without passwords.
    pub fn shown_servers(&self) -> Vec<String> {
        self.config.servers.iter().map(|url| without_password(url)).collect()
    }

    pub fn credentials_in(&self, state_dir: &Path) -> PathBuf {
        state_dir.join(&self.config.credentials)
    }

    /// The configuration of the node with this state directory.
    pub fn into_config(self, state_dir: &Path) -> FleetConfig {
        FleetConfig { credentials: self.credentials_in(state_dir), ..self.config }
    }

    /// Writes the keys into a table. Other keys of the table stay.
    pub fn write(&self, table: &mut dyn TableLike) {
        let config = &self.config;
        let mut servers = Array::new();
        config.servers.iter().for_each(|url| servers.push(url.as_str()));
        let replicas = i64::try_from(config.replicas).expect("there are at most five replicas");
        let values: [(&str, Value); 5] = [
            ("node", config.node.as_str().into()),
            ("servers", servers.into()),
            ("listen", config.listen.to_string().into()),
            ("address", config.address.as_str().into()),
            ("replicas", replicas.into()),
        ];
        for (key, value) in values {
            table.insert(key, Item::Value(value));
        }
        if let Some(path) = &config.store_ca {
            table.insert("store_ca", Item::Value(path.display().to_string().into()));
        }
        let times = [
            ("lease", config.timing.ttl_ms, LEASE_DEFAULT),
            ("lost_after", config.timing.lost_after_ms, LOST_AFTER_DEFAULT),
        ];
        for (key, time_ms, default) in times {
            if time_ms == duration::millis(default) {
                table.remove(key);
            } else {
                table.insert(key, Item::Value(format!("{}s", time_ms / 1000).into()));
            }
        }
    }

    fn checked(self) -> Result<Self, FleetTableProblem> {
        let address = &self.config.address;
        if !address.starts_with("0.0.0.0:") && !address.starts_with("[::]:") {
            return Ok(self);
        }
        Err(FleetTableProblem {
            key: Some("address"),
            what: format!("no other node can reach this node at {address}"),
            remedy: "write `address = \"HOST:PORT\"` with a host that the other nodes reach"
                .to_owned(),
        })
    }
}

impl FleetDraft {
    fn finish(self) -> Option<FleetTable> {
        let listen = self.listen?;
        let lease = self.lease.unwrap_or(LEASE_DEFAULT);
        let lost_after = self.lost_after.unwrap_or(LOST_AFTER_DEFAULT);
        let config = FleetConfig {
            node: self.node?,
            servers: self.servers?,
            store_ca: self.store_ca,
            replicas: self.replicas.unwrap_or(REPLICAS_DEFAULT),
            listen,
            address: self.address.unwrap_or_else(|| listen.to_string()),
            credentials: self.credentials.unwrap_or_else(|| CREDENTIALS_DEFAULT.into()),
            timing: timing(lease, lost_after),
            labels: self.labels.unwrap_or_default(),
            max_sessions: self.max_sessions,
        };
        Some(FleetTable { config })
    }
}

fn timing(lease: Duration, lost_after: Duration) -> LeaseTiming {
    LeaseTiming::of(duration::millis(lease), duration::millis(lost_after))
}

/// The settings of a new fleet. Without a time, the default applies.
pub fn new_settings(
    servers: Vec<String>,
    replicas: usize,
    lease: Option<Duration>,
    lost_after: Option<Duration>,
) -> FleetSettings {
    FleetSettings {
        servers,
        replicas,
        lease_ms: duration::millis(lease.unwrap_or(LEASE_DEFAULT)),
        lost_after_ms: duration::millis(lost_after.unwrap_or(LOST_AFTER_DEFAULT)),
    }
}

/// The directory of the credentials without the key `credentials`.
pub fn usual_credentials(state_dir: &Path) -> PathBuf {
    state_dir.join(CREDENTIALS_DEFAULT)
}

/// Values between two durations, with both as text.
struct DurationRange {
    least: Duration,
    most: Duration,
    text: &'static str,
}

const LEASE_RANGE: DurationRange = DurationRange {
    least: Duration::from_secs(2),
    most: Duration::from_secs(5 * 60),
    text: "from 2s to 5m",
};

const LOST_AFTER_RANGE: DurationRange = DurationRange {
    least: Duration::from_secs(10),
    most: Duration::from_secs(24 * 3600),
    text: "from 10s to 1d",
};

const NO_PORT: &str = "the port is 0; other nodes need to know the port";

fn set<T>(to: &mut Option<T>, value: Result<T, String>) -> Result<(), String> {
    *to = Some(value?);
    Ok(())
}

fn text(value: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| "it is not text in quotes".to_owned())
}

fn node_name(text: String) -> Result<NodeName, String> {
    NodeName::parse(text).map_err(|error| error.to_string())
}

fn servers(value: &Value) -> Result<Vec<String>, String> {
    let list = value.as_array().ok_or_else(|| "it is not a list".to_owned())?;
    checked_servers(list.iter().map(text).collect::<Result<_, _>>()?)
}

fn checked_servers(servers: Vec<String>) -> Result<Vec<String>, String> {
    if servers.is_empty() || servers.len() > SERVERS_MAX {
        return Err(format!("there are {} servers, not 1 to {SERVERS_MAX}", servers.len()));
    }
    servers.iter().try_for_each(|url| check_server(url))?;
    if !have_one_login(&servers) {
        return Err(
            "the servers have different users or passwords; write the same ones in all URLs"
                .to_owned(),
        );
    }
    Ok(servers)
}

/// The message does not repeat a password.
fn check_server(url: &str) -> Result<(), String> {
    let scheme = ["nats://", "tls://"].into_iter().find(|scheme| url.starts_with(scheme));
    let host = scheme
        .and_then(|scheme| url.strip_prefix(scheme))
        .map(|rest| rest.rsplit_once('@').map_or(rest, |(_, host)| host));
    let fits = |host: &&str| !host.is_empty() && !host.starts_with(':');
    let is_plain = !url.contains(|letter: char| letter.is_whitespace() || letter == ',');
    match host.filter(fits) {
        Some(_) if is_plain && url.len() <= ADDRESS_CHARS_MAX => Ok(()),
        _ => {
            let shown = without_password(url);
            Err(format!("{shown:?} is not a URL such as nats://10.0.0.1:4222 or tls://HOST:PORT"))
        }
    }
}

fn labels(value: &Value) -> Result<BTreeMap<String, String>, String> {
    let table =
        value.as_inline_table().ok_or_else(|| "it is not `{ NAME = \"VALUE\" }`".to_owned())?;
    let pairs = table.iter().map(|(name, value)| Ok((name.to_owned(), text(value)?)));
    let labels = pairs.collect::<Result<BTreeMap<_, _>, String>>()?;
    check_labels(&labels).map_err(|error| error.to_string())?;
    Ok(labels)
}

fn max_sessions(value: &Value) -> Result<u64, String> {
    let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
    number.filter(|number| *number > 0).ok_or_else(|| "it is not a number from 1".to_owned())
}

fn listen_address(text: String) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("{text:?} is not ADDRESS:PORT, for example 10.0.0.2:7421"))?;
    if address.port() == 0 { Err(NO_PORT.to_owned()) } else { Ok(address) }
}

fn host_and_port(text: String) -> Result<String, String> {
    let is_plain = |host: &str| {
        !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@".contains(c))
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    // An IPv6 address is in brackets.
    let is_one = |host: &str| host.starts_with('[') && host.ends_with(']') || !host.contains(':');
    match text.rsplit_once(':') {
        Some((host, port))
            if is_plain(host)
                && is_one(host)
                && is_port(port)
                && text.len() <= ADDRESS_CHARS_MAX =>
        {
            Ok(text)
        }
        _ => Err(format!("{text:?} is not HOST:PORT, for example node1.example.org:7421")),
    }
}

/// The address itself, if it has no host name; else the same port at every address of this machine.
fn usual_listen(address: &str) -> Result<SocketAddr, String> {
    if let Ok(listen) = address.parse() {
        return Ok(listen);
    }
    let port = address.rsplit_once(':').map(|(_, port)| port).unwrap_or_default();
    listen_address(format!("0.0.0.0:{port}"))
}

fn replicas(value: &Value) -> Result<usize, String> {
    let number = value.as_integer().ok_or_else(|| "it is not a number".to_owned())?;
    checked_replicas(usize::try_from(number).map_err(|_| format!("it is {number}"))?)
}

fn checked_replicas(replicas: usize) -> Result<usize, String> {
    if (1..=5).contains(&replicas) { Ok(replicas) } else { Err(format!("it is {replicas}")) }
}

fn absolute(text: String) -> Result<PathBuf, String> {
    let path = PathBuf::from(&text);
    if path.is_absolute() { Ok(path) } else { Err(format!("the path {text:?} is not absolute")) }
}

fn lease(text: String) -> Result<Duration, String> {
    parsed(&text, &LEASE_RANGE)
}

fn lost_after(text: String) -> Result<Duration, String> {
    parsed(&text, &LOST_AFTER_RANGE)
}

fn parsed(text: &str, range: &DurationRange) -> Result<Duration, String> {
    in_range(duration::parse(text).map_err(|error| error.to_string())?, range)
}

/// The store counts whole seconds.
fn in_range(duration: Duration, range: &DurationRange) -> Result<Duration, String> {
    if duration.subsec_nanos() != 0 {
        return Err("it is not in whole seconds".to_owned());
    }
    if duration < range.least || duration > range.most {
        return Err(format!("{} is not {}", duration::show(duration), range.text));
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use toml_edit::{Document, DocumentMut};

    use super::*;

    const GOOD: &str =
        "node = \"n1\"\nservers = [\"nats://127.0.0.1:4222\"]\nlisten = \"10.0.0.2:7421\"\n";

    fn read(text: &str) -> Result<FleetTable, Vec<FleetTableProblem>> {
        FleetTable::read(Document::parse(text).unwrap().as_table())
    }

    #[test]
    fn a_table_has_the_documented_defaults() {
        let table = read(GOOD).unwrap();
        assert_eq!(table.config.address, "10.0.0.2:7421");
        let config = table.into_config(Path::new("/s"));
        assert_eq!(config.credentials, Path::new("/s/fleet"));
        assert_eq!(config.timing, LeaseTiming::default());
        assert_eq!((config.replicas, config.store_ca), (3, None));
        let text = "store_ca = \"/ca\"\nlease = \"3s\"\nlost_after = \"10s\"\ncredentials = \"/c\"\naddress = \"a.example:1\"\n";
        let config = read(&format!("{GOOD}{text}")).unwrap().into_config(Path::new("/s"));
        assert_eq!(config.timing, LeaseTiming::of(3_000, 10_000));
        assert_eq!(config.store_ca.as_deref(), Some(Path::new("/ca")));
        assert_eq!(
            (config.address.as_str(), config.credentials.to_str()),
            ("a.example:1", Some("/c"))
        );
    }

    #[test]
    fn a_wrong_value_is_refused_with_the_reason() {
        for (text, expected) in [
            ("lease = \"1s\"", "1s is not from 2s to 5m"),
            ("lease = \"2500ms\"", "whole seconds"),
            ("lease = 30", "not text in quotes"),
            ("lost_after = \"2d\"", "not from 10s to 1d"),
            ("replicas = 0", "it is 0"),
            ("replicas = \"3\"", "not a number"),
            ("credentials = \"fleet\"", "not absolute"),
            ("store_ca = \"ca.pem\"", "not absolute"),
            ("address = \"10.0.0.2\"", "not HOST:PORT"),
            ("address = \"::1:80\"", "not HOST:PORT"),
            ("address = \"0.0.0.0:7421\"", "no other node can reach"),
        ] {
            let problems = read(&format!("{GOOD}{text}")).unwrap_err();
            assert!(problems[0].what.contains(expected), "{text}: {problems:?}");
        }
        for (text, expected) in [
            ("", "has no `node`"),
            ("node = \"a.b\"", "is not an id"),
            ("servers = []", "0 servers"),
            ("servers = \"nats://127.0.0.1\"", "not a list"),
            ("servers = [\"127.0.0.1:4222\"]", "is not a URL"),
            ("servers = [\"nats://me:key@a\", \"nats://you:key@b\"]", "different users"),
            ("servers = [\"me:key@127.0.0.1\"]", "...@127.0.0.1"),
            ("listen = \"localhost:1\"", "is not ADDRESS:PORT"),
            ("listen = \"10.0.0.2:0\"", "the port is 0"),
            (
                "listen = \"0.0.0.0:1\"\nnode = \"n\"\nservers = [\"nats://h\"]",
                "no other node can reach",
            ),
        ] {
            let problems = read(text).unwrap_err();
            let found = problems.iter().any(|problem| problem.what.contains(expected));
            assert!(found, "{text}: {problems:?}");
            assert!(!format!("{problems:?}").contains("key@"), "{problems:?}");
        }
    }

    #[test]
    fn a_table_that_is_written_reads_back() {
        let servers = vec!["nats://me:key@10.0.0.9:4222".to_owned(), "tls://b.example".to_owned()];
        let node = NodeName::parse("n1").unwrap();
        let settings = new_settings(servers, 3, Some(Duration::from_secs(3)), None);
        let mut table = FleetTable::new(node, "a.example:7421", None, settings.clone()).unwrap();
        table.config.store_ca = Some(PathBuf::from("/ca.pem"));
        assert_eq!(table.config.listen.to_string(), "0.0.0.0:7421");
        assert_eq!(table.config.settings(), settings);
        assert!(table.has_password());
        assert!(!format!("{table:?}").contains("key"));
        let mut document = DocumentMut::new();
        table.write(document.as_table_mut());
        assert_eq!(read(&document.to_string()), Ok(table));
        assert!(document.get("lease").is_some() && document.get("lost_after").is_none());
        let node = NodeName::parse("n1").unwrap();
        let local = FleetTable::new(node, "127.0.0.1:7421", None, settings).unwrap();
        assert_eq!(local.config.listen.to_string(), "127.0.0.1:7421");
    }
}
