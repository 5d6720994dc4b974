//! A server of the store: its configuration and its process. It syncs each write, as every fleet needs.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use windlass_client::Token;

use super::DevPlan;
use super::ports::free_ports;

/// The user of the nodes, and that of the other servers.
const NODES: &str = "fleet";
const SERVERS: &str = "server";

/// The file with the password of both.
const PASSWORD: &str = "store-password";

/// Bytes of a log's end that a failure shows.
const LOG_TAIL_BYTES: u64 = 2048;

/// A server of the store.
#[derive(Debug)]
pub(super) struct DevServer {
    pub name: String,
    port: u16,
    log: PathBuf,
    child: Child,
    /// How the process has ended.
    pub end: Option<String>,
}

/// What all servers have in common.
struct ServerCluster {
    password: Token,
    /// Where clients connect, and where the other servers do.
    ports: Vec<u16>,
    routes: Vec<u16>,
}

/// Starts the servers.
pub(super) fn start_all(plan: &DevPlan) -> anyhow::Result<Vec<DevServer>> {
    let count = usize::from(plan.servers);
    let mut ports = free_ports(2 * count)?;
    let routes = ports.split_off(count);
    let password = Token::read_or_make(&plan.dir.join(PASSWORD))?;
    let cluster = ServerCluster { password, ports, routes };
    (0..count).map(|number| DevServer::start(plan, &cluster, number)).collect()
}

/// The URLs of the servers for the nodes, with the password.
pub(super) fn urls(plan: &DevPlan, servers: &[DevServer]) -> anyhow::Result<Vec<String>> {
    let password = Token::read(&plan.dir.join(PASSWORD))?;
    let url = |server: &DevServer| {
        format!("nats://{NODES}:{}@127.0.0.1:{}", password.as_str(), server.port)
    };
    Ok(servers.iter().map(url).collect())
}

impl DevServer {
    fn start(plan: &DevPlan, cluster: &ServerCluster, number: usize) -> anyhow::Result<Self> {
        let name = format!("s{}", number + 1);
        let dir = plan.dir.join(&name);
        std::fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let config = dir.join("nats.conf");
        write_private(&config, &cluster.config(&dir, number))?;
        let log = dir.join("nats.log");
        let output = OpenOptions::new().create(true).append(true).mode(0o600).open(&log)?;
        let child = Command::new(&plan.nats_server)
            .arg("--config")
            .arg(&config)
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            // The supervisor ends it after the nodes. A Ctrl-C of the terminal would end it before them.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {}", plan.nats_server.display()))?;
        Ok(Self { name, port: cluster.ports[number], log, child, end: None })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where clients connect.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What a program needs to know of the server.
    pub fn access(&self) -> Value {
        json!({"server": self.name, "address": self.address(), "pid": self.pid()})
    }

    /// Whether the server listens.
    pub async fn listens(&self) -> bool {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.is_ok()
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
        };
        read().unwrap_or_else(|cause| format!("(the log cannot be read: {cause})"))
    }
}

impl ServerCluster {
    /// The configuration of a server. One server alone is no cluster.
    fn config(&self, dir: &Path, number: usize) -> String {
        let (port, password) = (self.ports[number], self.password.as_str());
        let mut text = format!(
            "# Written by `windlass fleet dev`.\n\
             server_name: s{}\n\
             listen: \"127.0.0.1:{port}\"\n\
             jetstream {{ store_dir: {}, sync_interval: always, max_file: 8GB, max_mem: 64MB }}\n\
             authorization {{ user: {NODES}, password: \"{password}\" }}\n",
            number + 1,
            config_text(&dir.join("files")),
        );
        if self.routes.len() > 1 {
            let route = |port: &u16| format!("\"nats://{SERVERS}:{password}@127.0.0.1:{port}\"");
            let routes: Vec<String> = self.routes.iter().map(route).collect();
            text += &format!(
                "cluster {{\n  name: windlass-dev\n  listen: \"127.0.0.1:{}\"\n  \
                 authorization {{ user: {SERVERS}, password: \"{password}\" }}\n  routes: [{}]\n}}\n",
                self.routes[number],
                routes.join(", "),
            );
        }
        text
    }
}

/// A path as a text in the configuration of nats-server.
fn config_text(path: &Path) -> String {
    let path = path.display().to_string();
    format!("\"{}\"", path.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Writes a new file that only its user can read.
pub(super) fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(routes: &[u16]) -> String {
        let cluster = ServerCluster {
            password: Token::parse(&"ab".repeat(32)).unwrap(),
            ports: vec![4001, 4002, 4003],
            routes: routes.to_vec(),
        };
        cluster.config(Path::new("/d/s1"), 0)
    }

    #[test]
    fn any_path_can_be_in_the_configuration() {
        for (path, text) in
            [("/d/a b/files", r#""/d/a b/files""#), (r#"/d/a"b\c"#, r#""/d/a\"b\\c""#)]
        {
            assert_eq!(config_text(Path::new(path)), text);
        }
    }

    #[test]
    fn a_server_syncs_each_write_and_serves_only_who_has_the_password() {
        let password = "ab".repeat(32);
        let alone = config(&[6001]);
        for line in [
            "server_name: s1".to_owned(),
            "listen: \"127.0.0.1:4001\"".to_owned(),
            "jetstream { store_dir: \"/d/s1/files\", sync_interval: always, max_file: 8GB, max_mem: 64MB }"
                .to_owned(),
            format!("authorization {{ user: fleet, password: \"{password}\" }}"),
        ] {
            assert!(alone.lines().any(|found| found == line), "{line}: {alone}");
        }
        assert!(!alone.contains("cluster"), "{alone}");
        let one_of_three = config(&[6001, 6002, 6003]);
        assert!(one_of_three.contains("listen: \"127.0.0.1:6001\""), "{one_of_three}");
        let route = format!("\"nats://server:{password}@127.0.0.1:6003\"");
        assert!(one_of_three.contains(&route), "{one_of_three}");
    }
}
