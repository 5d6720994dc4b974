//! Starts a kernel and waits until it answers: connection file, transport, handshake.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use jupyter_protocol::{ConnectionInfo, Transport};
use jupyter_zmq_client::RuntimeError;
use serde_json::Value;
use tokio::select;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use windlass_kernelspecs::KernelSpec;

use super::kernel::KernelProcess;
use super::wire::{Channels, KernelArrival, KernelMessage};
use crate::private_dir::{PrivateDir, random_hex};

/// How long a kernel may take to answer. The keeper waits 30 s for the worker.
const START_TIME: Duration = Duration::from_secs(28);

/// How often the worker looks whether a starting kernel listens. No event tells it.
const LISTEN_INTERVAL: Duration = Duration::from_millis(5);

/// How long the worker waits for the first output of the kernel until it asks again. A kernel publishes nothing
/// to a subscriber that it has not seen yet.
const ASK_AGAIN_TIME: Duration = Duration::from_millis(100);

/// How often a kernel is started if it ends before it answers: its ports may have been taken meanwhile, or it
/// may not know the transport.
const ATTEMPTS: usize = 2;

/// The channels of a connection file.
const CHANNELS: usize = 5;

/// Why a kernel did not start.
#[derive(Debug, thiserror::Error)]
pub enum KernelStartError {
    #[error("the kernel cannot be started: {0}")]
    Process(#[from] io::Error),
    #[error("the kernel ended before it answered ({0})")]
    Ended(ExitStatus),
    #[error("the kernel did not answer within {} s", START_TIME.as_secs())]
    Silent,
    #[error("the kernel cannot be reached: {0}")]
    Channels(#[from] RuntimeError),
    #[error("{0}")]
    Broken(String),
}

/// A kernel that answers.
pub struct StartedKernel {
    pub channels: Channels,
    /// The content of its `kernel_info_reply`.
    pub info: Value,
}

/// Starts the kernel. Its process is in `process` as soon as it exists, so the caller can end it at any time.
pub async fn launch(
    spec: &KernelSpec,
    dir: &PrivateDir,
    process: &mut Option<KernelProcess>,
) -> Result<StartedKernel, KernelStartError> {
    let deadline = Instant::now() + START_TIME;
    let mut transport = preferred_transport(spec, dir.has_sockets());
    let mut attempt = 1;
    loop {
        let info = connection_info(spec, &transport, dir, attempt)?;
        match start_once(spec, dir, &info, attempt, deadline, process).await {
            Err(KernelStartError::Ended(_)) if attempt < ATTEMPTS => {
                transport = Transport::TCP;
                attempt += 1;
            }
            result => return result,
        }
    }
}

/// The transport that the kernel surely knows. Unix sockets in a private directory keep other users out. A
/// kernelspec may name one in its metadata as `windlass.transport`.
fn preferred_transport(spec: &KernelSpec, has_sockets: bool) -> Transport {
    let said = spec.metadata.get("windlass").and_then(|windlass| windlass["transport"].as_str());
    let is_known = |argument: &String| {
        ["ipykernel", "ipykernel_launcher", "bash_kernel"].contains(&argument.as_str())
    };
    match said {
        _ if !has_sockets => Transport::TCP,
        Some("ipc") => Transport::IPC,
        Some(_) => Transport::TCP,
        None if spec.argv.iter().any(is_known) => Transport::IPC,
        None => Transport::TCP,
    }
}

fn connection_info(
    spec: &KernelSpec,
    transport: &Transport,
    dir: &PrivateDir,
    attempt: usize,
) -> io::Result<ConnectionInfo> {
    let (ip, ports) = match transport {
        Transport::IPC => {
            let prefix = dir.join(&format!("k{attempt}"));
            (prefix.to_string_lossy().into_owned(), [1, 2, 3, 4, 5])
        }
        Transport::TCP => (Ipv4Addr::LOCALHOST.to_string(), free_ports()?),
    };
    let [shell_port, iopub_port, stdin_port, control_port, hb_port] = ports;
    Ok(ConnectionInfo {
        ip,
        transport: transport.clone(),
        shell_port,
        iopub_port,
        stdin_port,
        control_port,
        hb_port,
        key: random_hex(32)?,
        signature_scheme: "hmac-sha256".to_owned(),
        kernel_name: Some(spec.name.clone()),
    })
}

/// Ports of the loopback device that nobody uses now.
fn free_ports() -> io::Result<[u16; CHANNELS]> {
    let mut listeners = Vec::with_capacity(CHANNELS);
    let mut ports = [0; CHANNELS];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

async fn start_once(
    spec: &KernelSpec,
    dir: &PrivateDir,
    info: &ConnectionInfo,
    attempt: usize,
    deadline: Instant,
    place: &mut Option<KernelProcess>,
) -> Result<StartedKernel, KernelStartError> {
    let text = serde_json::to_vec(info).map_err(io::Error::from)?;
    let file = dir.write_new(&format!("connection-{attempt}.json"), &text)?;
    let process = place.insert(KernelProcess::start(spec, &file)?);
    let answered = async {
        while !is_listening(info) {
            sleep(LISTEN_INTERVAL).await;
        }
        let session = random_hex(16)?;
        let mut channels = Channels::connect(info, &session).await?;
        let info = handshake(&mut channels).await?;
        Ok(StartedKernel { channels, info })
    };
    select! {
        result = timeout_at(deadline, answered) => result.unwrap_or(Err(KernelStartError::Silent)),
        status = process.ended() => Err(KernelStartError::Ended(status)),
    }
}

/// Whether the kernel listens on its channels.
fn is_listening(info: &ConnectionInfo) -> bool {
    let ports = [info.shell_port, info.iopub_port, info.stdin_port, info.control_port];
    match info.transport {
        Transport::IPC => {
            ports.iter().all(|port| PathBuf::from(format!("{}-{port}", info.ip)).exists())
        }
        Transport::TCP => match fs::read_to_string(Path::new("/proc/self/net/tcp")) {
            Ok(table) => ports.iter().all(|port| has_listener(&table, *port)),
            // Without the table, the library tries again until a connection succeeds.
            Err(_) => true,
        },
    }
}

/// Whether the kernel's table of TCP sockets has a listener on this port.
fn has_listener(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&end)) && words.nth(1) == Some(LISTEN)
    })
}

/// Waits until the kernel has answered a request and its output reaches the worker.
async fn handshake(channels: &mut Channels) -> Result<Value, KernelStartError> {
    let mut info = None;
    let mut has_output = false;
    for round in 0.. {
        channels.ask_info(&format!("start-{round}")).await?;
        let ask_again = sleep_until(Instant::now() + ASK_AGAIN_TIME);
        tokio::pin!(ask_again);
        loop {
            let arrival = select! {
                arrival = channels.next() => arrival,
                () = &mut ask_again => break,
            };
            match arrival {
                KernelArrival::Shell(KernelMessage { kind, content, .. })
                    if kind == "kernel_info_reply" =>
                {
                    info = Some(content);
                }
                KernelArrival::IoPub(_) => has_output = true,
                KernelArrival::Broken(cause) => return Err(KernelStartError::Broken(cause)),
                _ => {}
            }
            if has_output && let Some(info) = info.take() {
                return Ok(info);
            }
        }
    }
    Err(KernelStartError::Silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listeners_count() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
            1: 0100007F:1F91 00000000:0000 01 00000000:00000000\n";
        for (port, listens) in [(8080, true), (8081, false), (80, false)] {
            assert_eq!(has_listener(table, port), listens, "{port}");
        }
    }
}
