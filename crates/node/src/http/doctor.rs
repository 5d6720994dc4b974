//! Tests the node's machine for a client, by `windlass doctor` in a process of its own: the doctor forks and confines
//! processes, which a node with threads cannot do.

use std::fmt::Display;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::{Semaphore, oneshot};
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{ApiError, DoctorFindings};

use super::App;
use super::reply::{Answer, internal};
use crate::failure::Failure;

/// How long a test of the machine may take. It takes about a second.
const DOCTOR_WAIT: Duration = Duration::from_secs(60);

/// Maximum size of what the doctor prints.
const REPORT_BYTES_MAX: usize = 1024 * 1024;

/// Tests confine processes at each level, so they run one at a time.
static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);

/// Test the isolation of the node's machine, as `windlass doctor` does.
#[utoipa::path(post, path = "/v1/node/doctor", tag = "node",
    responses((status = 200, body = DoctorFindings), (status = "default", body = ApiError)))]
pub(super) async fn doctor(State(app): State<App>) -> Answer<Json<DoctorFindings>> {
    let Ok(turn) = ONE_AT_A_TIME.try_acquire() else {
        let message = "another test of the machine is running";
        return Err(Failure::new(ErrorCode::Overloaded, message).into());
    };
    let (tell, told) = oneshot::channel();
    let program = app.config.program.clone();
    // A thread of its own: a node that stops does not wait for it. A client that goes away does not end the test, so
    // the test keeps its turn.
    let begun = std::thread::Builder::new().name("doctor".to_owned()).spawn(move || {
        let _turn = turn;
        let _ = tell.send(report(&program));
    });
    let failed =
        |error: &dyn Display| Failure::internal(&format!("cannot run the doctor: {error}"));
    begun.map_err(|error| failed(&error))?;
    let printed = told.await.map_err(internal)?.map_err(|error| failed(&error))?;
    let findings = serde_json::from_slice(&printed)
        .map_err(|error| failed(&format!("it printed no report ({error}); see the node's log")))?;
    Ok(Json(findings))
}

/// What the doctor prints. Its exit status is not used: another part of the node reaps every child and may get the
/// status first.
fn report(program: &Path) -> io::Result<Vec<u8>> {
    let mut child = Command::new(program)
        .args(["doctor", "--json", "--empty-workspace"])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    // At once: later another process could have the id.
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let read = read_all(&mut child, Instant::now() + DOCTOR_WAIT);
    if let (Err(_), Some(process)) = (&read, process) {
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
    let _ = child.wait();
    read
}

fn read_all(child: &mut Child, deadline: Instant) -> io::Result<Vec<u8>> {
    let Some(stdout) = &mut child.stdout else { return Ok(Vec::new()) };
    let mut printed = Vec::new();
    let mut part = vec![0; 64 * 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut ready = [PollFd::new(stdout, PollFlags::IN)];
        match poll(&mut ready, Some(&left)) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long")),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let count = match stdout.read(&mut part) {
            Ok(0) => return Ok(printed),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        printed.extend_from_slice(&part[..count]);
        if printed.len() > REPORT_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it printed too much"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What a program that stands in for the doctor prints.
    fn printed_by(script: &str) -> io::Result<Vec<u8>> {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        report(&program)
    }

    #[test]
    fn a_report_is_read_to_its_end() {
        assert_eq!(printed_by("echo \"$@\"").unwrap(), b"doctor --json --empty-workspace\n");
    }

    #[test]
    fn a_doctor_that_floods_is_ended() {
        let error = printed_by("exec yes").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
