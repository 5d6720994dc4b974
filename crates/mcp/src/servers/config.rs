//! The configuration file of the MCP servers, in the same format as agents' files. Reads and checks
//! it; starts nothing. An invalid server is reported, and the others are used.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::Value;
use windlass_protocol::api::ServerSessions;

use super::names;

/// The largest accepted file.
const FILE_BYTES_MAX: usize = 1024 * 1024;

/// Most servers in one file. A file with more is refused.
const SERVERS_MAX: usize = 64;

/// Default time that a server may take from its start to its list of tools. It may have to be
/// installed first, as with `npx` and `uvx`.
const START_WAIT: Duration = Duration::from_secs(60);

/// The path of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigFile {
    /// The default path. The file may be absent.
    Default(PathBuf),
    /// A path that the user gave. The file must exist.
    Named(PathBuf),
}

/// One server of the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServerEntry {
    pub name: String,
    /// The name as an identifier, different from all other groups.
    pub group: String,
    pub sessions: ServerSessions,
    pub start_wait: Duration,
    /// How to connect to the server, or why that is impossible.
    pub transport: Result<ServerTransport, String>,
}

/// How to connect to a server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ServerTransport {
    Process(ServerProgram),
    Http { uri: Uri, headers: HashMap<HeaderName, HeaderValue> },
}

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerProgram {
    pub command: String,
    pub args: Vec<String>,
    /// In addition to the standard variables.
    pub env: BTreeMap<String, String>,
    /// `None`: the user's home.
    pub cwd: Option<PathBuf>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read {path}: {cause}")]
    Read { path: PathBuf, cause: io::Error },
    #[error("{path} has more than {FILE_BYTES_MAX} bytes")]
    TooLarge { path: PathBuf },
    #[error("{path} is not understood: {cause}")]
    NotUnderstood { path: PathBuf, cause: serde_json::Error },
    #[error("{path} names {count} servers, more than {SERVERS_MAX}")]
    TooMany { path: PathBuf, count: usize },
}

impl ConfigFile {
    pub fn path(&self) -> &Path {
        match self {
            Self::Default(path) | Self::Named(path) => path,
        }
    }

    /// The servers, by name.
    pub(crate) fn read(&self) -> Result<Vec<ServerEntry>, ConfigError> {
        let path = self.path();
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(cause)
                if matches!(self, Self::Default(_)) && cause.kind() == io::ErrorKind::NotFound =>
            {
                return Ok(Vec::new());
            }
            Err(cause) => return Err(ConfigError::Read { path: path.to_owned(), cause }),
        };
        if text.len() > FILE_BYTES_MAX {
            return Err(ConfigError::TooLarge { path: path.to_owned() });
        }
        // An empty file, such as `/dev/null`, means no servers.
        if text.trim_ascii().is_empty() {
            return Ok(Vec::new());
        }
        let servers = servers_in(&text)
            .map_err(|cause| ConfigError::NotUnderstood { path: path.to_owned(), cause })?;
        if servers.len() > SERVERS_MAX {
            let count = servers.len();
            return Err(ConfigError::TooMany { path: path.to_owned(), count });
        }
        Ok(entries(servers))
    }
}

/// The file's entry of each server. Other keys belong to other programs.
fn servers_in(text: &[u8]) -> Result<BTreeMap<String, Value>, serde_json::Error> {
    let mut file: BTreeMap<String, Value> = serde_json::from_slice(text)?;
    file.remove("mcpServers").map_or_else(|| Ok(BTreeMap::new()), serde_json::from_value)
}

/// The fields of a server's entry. Fields of other agents are ignored.
#[derive(Deserialize)]
struct ServerFields {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    sessions: ServerSessions,
    start_wait_ms: Option<u64>,
    #[serde(default)]
    disabled: bool,
}

fn entries(servers: BTreeMap<String, Value>) -> Vec<ServerEntry> {
    // Serde would accept a list as the fields in order, so require an object first.
    let read = |value: Value| {
        let fields: serde_json::Map<String, Value> = serde_json::from_value(value)?;
        serde_json::from_value::<ServerFields>(Value::Object(fields))
    };
    let servers: Vec<(String, Result<ServerFields, _>)> = servers
        .into_iter()
        .map(|(name, value)| (name, read(value)))
        .filter(|(_, fields)| !fields.as_ref().is_ok_and(|fields| fields.disabled))
        .collect();
    let groups = names::groups(servers.iter().map(|(name, _)| name.as_str()));
    servers
        .into_iter()
        .zip(groups)
        .map(|((name, fields), group)| match fields {
            Ok(fields) => ServerEntry {
                name,
                group,
                sessions: fields.sessions,
                start_wait: fields.start_wait_ms.map_or(START_WAIT, Duration::from_millis),
                transport: transport(fields),
            },
            Err(fault) => ServerEntry {
                name,
                group,
                sessions: ServerSessions::ByPolicy,
                start_wait: START_WAIT,
                transport: Err(format!("its entry is not understood: {fault}")),
            },
        })
        .collect()
}

fn transport(fields: ServerFields) -> Result<ServerTransport, String> {
    match (fields.command, fields.url) {
        (Some(command), None) => {
            if fields.cwd.as_ref().is_some_and(|cwd| !cwd.is_absolute()) {
                return Err("its cwd is not an absolute path".to_owned());
            }
            let (args, env, cwd) = (fields.args, fields.env, fields.cwd);
            Ok(ServerTransport::Process(ServerProgram { command, args, env, cwd }))
        }
        (None, Some(url)) => {
            Ok(ServerTransport::Http { uri: plain_http(&url)?, headers: headers(fields.headers)? })
        }
        (Some(_), Some(_)) => {
            Err("it has a command and a url; an entry can have one of them".to_owned())
        }
        (None, None) => Err("it has neither a command nor a url".to_owned()),
    }
}

fn plain_http(url: &str) -> Result<Uri, String> {
    let uri: Uri = url.parse().map_err(|fault| format!("its url is invalid: {fault}"))?;
    match uri.scheme_str() {
        Some("http") if uri.host().is_some() => Ok(uri),
        Some("https") => {
            Err("https servers are not supported: use a bridge such as mcp-remote as \
                              its command"
                .to_owned())
        }
        _ => Err("its url does not begin with http://".to_owned()),
    }
}

fn headers(headers: BTreeMap<String, String>) -> Result<HashMap<HeaderName, HeaderValue>, String> {
    let parse = |(name, value): (String, String)| {
        let bad = || format!("its header {name:?} cannot be sent");
        let mut value = HeaderValue::from_str(&value).map_err(|_| bad())?;
        value.set_sensitive(true);
        Ok((HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad())?, value))
    };
    headers.into_iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<ServerEntry>, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mcp.json");
        std::fs::write(&path, text).unwrap();
        ConfigFile::Named(path).read()
    }

    #[test]
    fn servers_are_processes_or_addresses_and_other_fields_are_passed_over() {
        let entries = read(
            r#"{"mcpServers": {
                "my-files": {"command": "npx", "args": ["-y", "x"], "env": {"A": "b"},
                    "cwd": "/srv", "type": "stdio", "sessions": "all", "start_wait_ms": 500},
                "remote": {"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "Bearer x"}},
                "off": {"command": "x", "disabled": true}
            }, "inputs": []}"#,
        )
        .unwrap();
        let [files, remote] = entries.as_slice() else { panic!("{entries:?}") };
        assert_eq!((files.name.as_str(), files.group.as_str()), ("my-files", "my_files"));
        assert_eq!(files.sessions, ServerSessions::All);
        assert_eq!(files.start_wait, Duration::from_millis(500));
        let Ok(ServerTransport::Process(program)) = &files.transport else { panic!("{files:?}") };
        assert_eq!(program.args, ["-y", "x"]);
        assert_eq!(program.cwd.as_deref(), Some(Path::new("/srv")));
        assert_eq!(remote.sessions, ServerSessions::ByPolicy);
        let Ok(ServerTransport::Http { uri, headers }) = &remote.transport else {
            panic!("{remote:?}")
        };
        assert_eq!((uri.path(), headers.len()), ("/mcp", 1));
    }

    #[test]
    fn one_bad_entry_says_why_and_leaves_the_others() {
        let entries = read(
            r#"{"mcpServers": {"a": {"args": []}, "b": {"command": 7}, "c": {"command": "x"},
                "d": {"url": "https://localhost/mcp"}, "e": {"url": "ftp://x"},
                "f": {"command": "x", "url": "http://localhost"},
                "g": {"command": "x", "cwd": "here"},
                "h": {"url": "http://localhost", "headers": {"a b": "c"}}}}"#,
        )
        .unwrap();
        let whys: Vec<_> =
            entries.iter().filter_map(|entry| entry.transport.as_ref().err()).collect();
        let expected = [
            "neither",
            "not understood",
            "https",
            "http://",
            "can have one",
            "absolute",
            "\"a b\"",
        ];
        assert_eq!(whys.len(), expected.len(), "{whys:?}");
        for (why, part) in whys.iter().zip(expected) {
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        assert!(read(" \n").unwrap().is_empty());
        for broken in ["{", "[]", r#"{"mcpServers": []}"#] {
            let error = read(broken).unwrap_err().to_string();
            assert!(error.contains("mcp.json is not understood"), "{error}");
        }
        let absent = PathBuf::from("/nonexistent/mcp.json");
        assert!(ConfigFile::Default(absent.clone()).read().unwrap().is_empty());
        let error = ConfigFile::Named(absent).read().unwrap_err().to_string();
        assert!(error.contains("/nonexistent/mcp.json"), "{error}");
    }
}
