//! Bounds uploads to sessions of tenants: a workspace that the node made stays within the session's disk limit. The
//! keeper measures a workspace only while code runs, so it sees too late what clients upload.

use std::path::Path;
use std::time::{Duration, Instant};

use windlass_beneath::{LinkedFiles, TreeMeter, Whole};
use windlass_protocol::api::Session;

use crate::config::Config;
use crate::session_dirs;

/// Maximum time and number of entries of a measurement. A workspace that takes more gets no uploads.
const MEASURE_TIME: Duration = Duration::from_secs(2);
const ENTRIES_MAX: u64 = 1_000_000;

/// The most bytes that a client may upload into this session's workspace now. Reads the workspace, so it runs on the
/// blocking pool.
pub(super) fn bytes_max(config: &Config, session: &Session) -> u64 {
    let limit = session.policy.as_ref().and_then(|policy| policy.limits.disk_bytes);
    let (Some(_), Some(limit)) = (session.id.tenant(), limit) else { return u64::MAX };
    // A client without a tenant has named any other workspace, which may have any size.
    let Ok(inside) = session_dirs::inside(config, Path::new(&session.workspace)) else {
        return u64::MAX;
    };
    let until = Instant::now() + MEASURE_TIME;
    let mut meter = TreeMeter::new(until, ENTRIES_MAX, LinkedFiles::AtFirstName);
    let measured =
        session_dirs::state(config).and_then(|state| state.measure_tree(inside, &mut meter));
    match measured {
        Ok(size) if size.whole == Whole::Yes => limit.saturating_sub(size.bytes),
        // What cannot be measured may be full.
        Ok(_) | Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use windlass_protocol::api::SessionState;
    use windlass_protocol::policy::{Policy, Preset};
    use windlass_protocol::{NodeName, SessionId};

    use super::*;

    #[test]
    fn what_a_tenant_uploads_stays_within_the_limit_of_its_workspace() {
        const MIB: u64 = 1 << 20;
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let state = dir.path().canonicalize().unwrap();
        let workspace = state.join("workspaces/s");
        std::fs::create_dir_all(&workspace).unwrap();
        for directory in [&*workspace, elsewhere.path()] {
            std::fs::write(directory.join("file"), vec![1; 1 << 20]).unwrap();
        }
        let config = Config::new(dir.path().join("run"), state, PathBuf::new());
        let left = |id: &str, workspace: &Path, disk_bytes| {
            let (id, node) = (SessionId::parse(id).unwrap(), NodeName::parse("n1").unwrap());
            let mut session = Session::of_directory(id, node, SessionState::Idle);
            session.workspace = workspace.display().to_string();
            let mut policy = Policy::of(Preset::default());
            policy.limits.disk_bytes = disk_bytes;
            session.policy = Some(Box::new(policy));
            bytes_max(&config, &session)
        };
        let some = left("s@acme", &workspace, Some(4 * MIB));
        assert!((2 * MIB..=3 * MIB).contains(&some), "{some}");
        assert_eq!(left("s@acme", &workspace, Some(MIB / 2)), 0);
        assert_eq!(left("s@acme", &workspace, None), u64::MAX);
        assert_eq!(left("s", &workspace, Some(MIB / 2)), u64::MAX);
        assert_eq!(left("s@acme", elsewhere.path(), Some(MIB / 2)), u64::MAX);
    }
}
