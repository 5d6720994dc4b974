//! How the node handles a nursery that does not start, refuses, or ends without an answer. The nurseries
//! here are shell programs, or missing programs.

use std::os::unix::fs::PermissionsExt;

use super::*;

struct NurseryFixture {
    dir: tempfile::TempDir,
}

impl NurseryFixture {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A nursery whose program is the shell script `script`.
    fn nursery(&self, script: &str) -> NurseryClient {
        let program = self.dir.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
        let log = self.dir.path().join("log");
        NurseryClient::new(program, log, Arc::new(KeeperProcesses::default()))
    }
}

fn ask(nursery: &NurseryClient) -> NurseryClientError {
    let null = null().unwrap();
    nursery.keeper(null.as_fd(), null.as_fd(), HoldMode::Auto).unwrap_err()
}

#[test]
fn a_nursery_that_cannot_be_started_is_not_tried_a_third_time() {
    let fixture = NurseryFixture::new();
    let nursery = fixture.nursery("exit 1");
    std::fs::remove_file(fixture.dir.path().join("program")).unwrap();
    for expected in ["No such file", "No such file", "for a while"] {
        match ask(&nursery) {
            NurseryClientError::Absent(error) => {
                assert!(error.to_string().contains(expected), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_nursery_that_ends_at_once_is_given_up() {
    let fixture = NurseryFixture::new();
    let nursery = fixture.nursery("exit 1");
    // The nursery may end before or after it gets the request. Either way, the node gives up soon.
    let given_up = (0..3).any(|_| match ask(&nursery) {
        NurseryClientError::Absent(error) => error.to_string().contains("for a while"),
        NurseryClientError::Lost(_) => false,
        other @ NurseryClientError::Refused(_) => panic!("{other:?}"),
    });
    assert!(given_up);
}

#[test]
fn whether_a_process_runs_is_not_known_when_the_nursery_ends_without_an_answer() {
    let fixture = NurseryFixture::new();
    // The nursery ends after it got the request.
    let nursery = fixture.nursery("head -c 1 >/dev/null; exit 1");
    assert!(matches!(ask(&nursery), NurseryClientError::Lost(_)));
}

#[test]
fn deaths_that_are_far_apart_are_accidents() {
    let mut health = NurseryHealth::default();
    let start = Instant::now();
    for second in [0, 5, 10] {
        let now = start + Duration::from_secs(second);
        health.died(now);
        assert!(!health.is_given_up(now), "after {second} s");
    }
    let soon = start + Duration::from_millis(10_500);
    health.died(soon);
    assert!(health.is_given_up(soon));
    assert!(!health.is_given_up(soon + BACKOFF));
}
