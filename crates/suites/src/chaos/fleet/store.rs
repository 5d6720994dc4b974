//! The store of a run: three servers of NATS, each in a network namespace of its own and with a disk of its own that can
//! lose its power. Each write is synced.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::time::timeout;
use windlass_testkit::{nats, processes};

use super::disk::PowerDisk;
use super::network::{address, enter};
use super::schedule::{NetworkMember, SERVERS, ServerRole};
use crate::chaos::raw_http::{NodeEndpoint, RawConnection, RawRequest};

const CLIENT_PORT: u16 = 4222;
const ROUTE_PORT: u16 = 6222;
const MONITOR_PORT: u16 = 8222;

/// The stream whose leader counts as the leader of the store: it has the directory.
const STREAM: &str = "DIR";

/// How long a server may take to tell who leads the stream.
const LEADER_WAIT: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct ChaosServer {
    config: PathBuf,
    log: PathBuf,
    process: Option<Child>,
    /// `None` if this machine has no disk that can lose its power.
    disk: Option<PowerDisk>,
}

/// The servers. They end with this value, and with this process.
#[derive(Debug)]
pub struct ChaosStore {
    program: PathBuf,
    servers: Vec<ChaosServer>,
}

impl ChaosStore {
    /// Starts the servers with their files in `directory`.
    pub fn start(directory: &Path, has_disks: bool) -> Result<Self> {
        let program = nats::program();
        let program =
            program.context("no nats-server: set WINDLASS_TEST_NATS, or put it on the PATH")?;
        let mut store = Self { program, servers: Vec::new() };
        for number in 0..SERVERS {
            store.servers.push(ChaosServer::make(directory, number, has_disks)?);
            store.run(number)?;
        }
        Ok(store)
    }

    /// The URLs for the nodes.
    pub fn urls() -> Vec<String> {
        let url =
            |number| format!("nats://{}:{CLIENT_PORT}", address(NetworkMember::Server(number)));
        (0..SERVERS).map(url).collect()
    }

    /// Starts a server, or starts it again with its files.
    pub fn run(&mut self, number: usize) -> Result<()> {
        let server = &mut self.servers[number];
        let log = File::options().create(true).append(true).open(&server.log)?;
        let mut command = Command::new("setpriv");
        // The server ends with this process, however that ends.
        command.args(["--pdeathsig", "KILL", "nsenter"]);
        command.arg(enter(NetworkMember::Server(number))).arg("--");
        if let Some(disk) = &server.disk {
            disk.wait_released()?;
            command.args(disk.mounted());
        }
        let process = command
            .arg(&self.program)
            .arg("--config")
            .arg(&server.config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot run setpriv")?;
        let pid = server.process.insert(process).id();
        server.disk.iter().try_for_each(|disk| disk.wait_mounted(pid, &self.program))
    }

    /// kill -9.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        self.servers[number].kill()
    }

    /// What the server did not sync is lost, and it is killed.
    pub fn lose_power(&mut self, number: usize) -> Result<()> {
        let server = &mut self.servers[number];
        if let (Some(process), Some(disk)) = (&server.process, &server.disk) {
            // Stopped, the server does nothing more, as if its machine were off.
            processes::stop(process.id());
            disk.lose_power(process.id())?;
        }
        server.kill()
    }

    /// SIGSTOP. The server keeps its connections and answers nothing.
    pub fn stop(&self, number: usize) {
        self.servers[number].process.iter().for_each(|process| processes::stop(process.id()));
    }

    /// SIGCONT.
    pub fn resume(&self, number: usize) {
        self.servers[number].process.iter().for_each(|process| processes::resume(process.id()));
    }

    /// The server that has a role now. If no server tells who leads, one is taken for the leader.
    pub async fn in_role(&self, role: ServerRole) -> usize {
        let mut leader = 0;
        for number in 0..SERVERS {
            if let Some(told) = leader_told_by(number).await {
                leader = told;
                break;
            }
        }
        match role {
            ServerRole::Leader => leader,
            ServerRole::Follower => (leader + 1) % SERVERS,
        }
    }

    /// Copies the logs of the servers into a directory.
    pub fn keep_logs(&self, directory: &Path) {
        for (number, server) in self.servers.iter().enumerate() {
            let _ = fs::copy(&server.log, directory.join(format!("{}.log", server_name(number))));
        }
    }
}

impl ChaosServer {
    fn make(directory: &Path, number: usize, has_disks: bool) -> Result<Self> {
        let name = server_name(number);
        let place = directory.join(&name);
        let disk = match has_disks {
            true => Some(PowerDisk::make(directory, &name)?),
            false => {
                fs::create_dir(&place)?;
                None
            }
        };
        let config = place.with_extension("conf");
        fs::write(&config, configuration(number, &place.join("jetstream")))?;
        Ok(Self { config, log: place.with_extension("log"), process: None, disk })
    }

    fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }
}

impl Drop for ChaosServer {
    fn drop(&mut self) {
        // The server ends with this process anyway.
        let _ = self.kill();
    }
}

fn configuration(number: usize, files: &Path) -> String {
    let own = address(NetworkMember::Server(number));
    let routes = (0..SERVERS)
        .map(|other| format!("nats://{}:{ROUTE_PORT}", address(NetworkMember::Server(other))));
    let routes: Vec<String> = routes.collect();
    format!(
        "server_name: {}\nlisten: {own}:{CLIENT_PORT}\nhttp: {own}:{MONITOR_PORT}\n\
         jetstream {{ store_dir: \"{}\", sync_interval: always, max_file: 400MB, max_mem: 64MB }}\n\
         cluster {{ name: fleet, listen: {own}:{ROUTE_PORT}, routes: [{}] }}\n",
        server_name(number),
        files.display(),
        routes.join(", "),
    )
}

fn server_name(number: usize) -> String {
    format!("server{number}")
}

/// Asks a server who leads the stream.
async fn leader_told_by(number: usize) -> Option<usize> {
    let ip: IpAddr = address(NetworkMember::Server(number)).parse().ok()?;
    let address = SocketAddr::new(ip, MONITOR_PORT);
    let endpoint = NodeEndpoint::Tcp { address, token: String::new() };
    let request = RawRequest::get("/jsz?accounts=true&streams=true").bytes(&endpoint);
    let asked = async {
        let mut connection = RawConnection::open(&endpoint).await.ok()?;
        connection.write(&request).await.ok()?;
        connection.answer().await.ok()
    };
    let answer = timeout(LEADER_WAIT, asked).await.ok()??;
    let leader = leader_in(&serde_json::from_slice(&answer.body).ok()?)?;
    (0..SERVERS).find(|number| server_name(*number) == leader)
}

/// The leader of the stream, wherever the answer names it.
fn leader_in(answer: &Value) -> Option<String> {
    match answer {
        Value::Object(fields) => {
            let name = fields.get("name").and_then(Value::as_str);
            let leader = fields.get("cluster").and_then(|cluster| cluster["leader"].as_str());
            match leader {
                Some(leader) if name == Some(STREAM) => Some(leader.to_owned()),
                _ => fields.values().find_map(leader_in),
            }
        }
        Value::Array(items) => items.iter().find_map(leader_in),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_leader_of_the_directory_is_found_and_no_other() {
        let stream =
            |name: &str, leader: &str| json!({"name": name, "cluster": {"leader": leader}});
        let answer = json!({
            "meta_cluster": {"name": "fleet", "leader": "server0"},
            "account_details": [
                {"name": "$G", "stream_detail": [stream("KV_lease", "server2"), stream("DIR", "server1")]},
            ],
        });
        assert_eq!(leader_in(&answer), Some("server1".to_owned()));
        assert_eq!(leader_in(&json!({"account_details": [stream("EV0", "server2")]})), None);
    }
}
