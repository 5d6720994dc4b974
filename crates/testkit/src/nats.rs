//! Three servers of NATS on loopback, which a test can kill and start again with their files.

use std::net::TcpListener;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

/// The variable with the path of `nats-server`. Without it the one on the PATH is used.
const PROGRAM_VARIABLE: &str = "WINDLASS_TEST_NATS";

pub const SERVERS: usize = 3;

const PORTS: Range<u16> = 10_000..32_000;

#[derive(Debug)]
struct NatsServer {
    config: PathBuf,
    port: u16,
    child: Option<Child>,
}

/// A cluster with JetStream, which syncs each write. It ends with this value.
#[derive(Debug)]
pub struct NatsServers {
    program: PathBuf,
    servers: Vec<NatsServer>,
    place: tempfile::TempDir,
}

impl NatsServers {
    /// Starts the servers. `None` if there is no program.
    pub fn start() -> Result<Option<Self>> {
        Self::start_with("")
    }

    /// Starts the servers with more lines in their configuration.
    pub fn start_with(more: &str) -> Result<Option<Self>> {
        let Some(program) = program() else { return Ok(None) };
        let place = tempfile::tempdir()?;
        let (ports, routes) = (free_ports(SERVERS)?, free_ports(SERVERS)?);
        let all: Vec<String> =
            routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let mut servers = Vec::new();
        for number in 0..SERVERS {
            let config = place.path().join(format!("server{number}.conf"));
            let files = place.path().join(format!("files{number}"));
            let text = format!(
                "server_name: s{number}\nlisten: 127.0.0.1:{}\n\
                 jetstream {{ store_dir: \"{}\", sync_interval: always, max_file: 8GB, max_mem: 64MB }}\n\
                 cluster {{ name: fleet, listen: 127.0.0.1:{}, routes: [{}] }}\n{more}\n",
                ports[number],
                files.display(),
                routes[number],
                all.join(", "),
            );
            std::fs::write(&config, text)?;
            servers.push(NatsServer { config, port: ports[number], child: None });
        }
        let mut started = Self { program, servers, place };
        for number in 0..SERVERS {
            started.run(number)?;
        }
        Ok(Some(started))
    }

    /// Starts a server, or starts it again with its files.
    pub fn run(&mut self, number: usize) -> Result<()> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.place.path().join(format!("server{number}.log")))?;
        // The server ends with the test, however the test ends.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&self.program)
            .arg("--config")
            .arg(&self.servers[number].config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start setpriv")?;
        self.servers[number].child = Some(child);
        Ok(())
    }

    /// kill -9.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        if let Some(mut child) = self.servers[number].child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(|server| format!("nats://127.0.0.1:{}", server.port)).collect()
    }

    /// The process id of a server, if it runs.
    pub fn pid(&self, number: usize) -> Option<u32> {
        Some(self.servers[number].child.as_ref()?.id())
    }

    /// The process ids of the servers that run.
    pub fn pids(&self) -> Vec<u32> {
        self.servers.iter().filter_map(|server| Some(server.child.as_ref()?.id())).collect()
    }

    /// Bytes of the servers' files.
    pub fn file_bytes(&self) -> Result<u64> {
        let mut left = vec![self.place.path().to_owned()];
        let mut bytes = 0;
        while let Some(directory) = left.pop() {
            for entry in std::fs::read_dir(directory)? {
                let entry = entry?;
                let about = entry.metadata()?;
                if about.is_dir() {
                    left.push(entry.path());
                } else {
                    bytes += about.len();
                }
            }
        }
        Ok(bytes)
    }
}

impl Drop for NatsServers {
    fn drop(&mut self) {
        for number in 0..SERVERS {
            // The servers end with this process anyway.
            let _ = self.kill(number);
        }
    }
}

/// The program of the servers. `None` if this machine has none.
pub fn program() -> Option<PathBuf> {
    let program = std::env::var_os(PROGRAM_VARIABLE).map_or("nats-server".into(), PathBuf::from);
    Command::new(&program).arg("--version").output().is_ok().then_some(program)
}

/// Ports of loopback that nothing listens at. They lie below those that the kernel gives to outgoing connections, so a
/// server that starts later, or again, finds its port free. A process gets each port once.
pub fn free_ports(count: usize) -> Result<Vec<u16>> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Test programs that run side by side begin at different ports.
    let first = std::process::id().wrapping_mul(499);
    let mut free = Vec::new();
    for _ in PORTS {
        if free.len() == count {
            return Ok(free);
        }
        let tried = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + u16::try_from(tried % u32::from(PORTS.end - PORTS.start))?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            free.push(port);
        }
    }
    bail!("no {count} free ports between {} and {}", PORTS.start, PORTS.end)
}
