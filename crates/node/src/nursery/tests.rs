//! What the node makes of a nursery that does not live, refuses, or leaves without an answer.
//! Nurseries here are shell programs, or none.

use std::os::unix::fs::PermissionsExt;

use super::*;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A nursery that is the shell's `script`; its name is what the node runs.
    fn nursery(&self, script: &str) -> Nursery {
        let program = self.dir.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
        let log = self.dir.path().join("log");
        Nursery::new(program, log, Arc::new(Starting::default()))
    }
}

fn ask(nursery: &Nursery) -> NurseryError {
    let null = null().unwrap();
    nursery.keeper(null.as_fd(), null.as_fd(), HoldMode::Auto).unwrap_err()
}

#[test]
fn a_nursery_that_cannot_be_started_is_not_tried_a_third_time() {
    let place = Place::new();
    let nursery = place.nursery("exit 1");
    std::fs::remove_file(place.dir.path().join("program")).unwrap();
    for expected in ["No such file", "No such file", "for a while"] {
        match ask(&nursery) {
            NurseryError::Absent(error) => {
                assert!(error.to_string().contains(expected), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_nursery_that_ends_at_once_is_given_up() {
    let place = Place::new();
    let nursery = place.nursery("exit 1");
    // It may end before it is asked or after: either way, soon nobody is asked.
    let given_up = (0..3).any(|_| match ask(&nursery) {
        NurseryError::Absent(error) => error.to_string().contains("for a while"),
        NurseryError::Lost(_) => false,
        other @ NurseryError::Refused(_) => panic!("{other:?}"),
    });
    assert!(given_up);
}

#[test]
fn whether_a_process_runs_is_not_known_when_the_nursery_ends_without_an_answer() {
    let place = Place::new();
    // It ends only when it has been asked.
    let nursery = place.nursery("head -c 1 >/dev/null; exit 1");
    assert!(matches!(ask(&nursery), NurseryError::Lost(_)));
}

#[test]
fn deaths_that_are_far_apart_are_accidents() {
    let mut health = Health::default();
    let start = Instant::now();
    for second in [0, 5, 10] {
        let now = start + Duration::from_secs(second);
        health.died(now);
        assert!(!health.is_given_up(now), "after {second} s");
    }
    let soon = start + Duration::from_millis(10_500);
    health.died(soon);
    assert!(health.is_given_up(soon));
    assert!(!health.is_given_up(soon + WITHOUT));
}
