//! Tests of the credentials as their users see them: who gets a certificate, and who trusts whom.

mod enrolling;
mod trusting;

use std::path::{Path, PathBuf};

use windlass_protocol::NodeName;

use super::{FleetAuthority, NodeTls};

/// A directory for credentials in a directory that is removed with the test.
struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn of(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn authority(&self, name: &str) -> FleetAuthority {
        FleetAuthority::create(&self.of(name)).unwrap()
    }
}

fn named(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

/// Credentials of a node, without an invitation.
fn credentials(authority: &FleetAuthority, dir: &Path, node: &str) -> NodeTls {
    authority.issue_own(&named(node)).unwrap().write(dir).unwrap();
    NodeTls::load(dir).unwrap()
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}
