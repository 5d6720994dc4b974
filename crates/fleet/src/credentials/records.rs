//! What the authority of a fleet remembers: open invitations, the names of nodes that have joined, and the names that
//! were removed. It has hashes of the invitations' secrets and never the secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use windlass_protocol::NodeName;

use super::error::CredentialsError;
use super::files;

/// The version of the file. A reader refuses other versions.
const VERSION: u32 = 1;

const FILE: &str = "authority.json";
const LOCK: &str = "authority.lock";

/// Read limit. A file with the maximum number of everything is shorter.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Maximum number of open invitations.
pub const INVITATIONS_MAX: usize = 1_000;

/// Maximum number of names that have joined or were removed.
pub const MEMBERS_MAX: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AuthorityRecords {
    version: u32,
    pub invitations: Vec<InvitationRecord>,
    pub members: BTreeSet<NodeName>,
    /// Names that were removed, and until when: by then the last certificate of each has expired.
    pub removed: BTreeMap<NodeName, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InvitationRecord {
    /// SHA-256 of the secret, as base64url.
    pub sha256: String,
    pub expires_at_ms: u64,
    /// The only name that may join with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
}

impl Default for AuthorityRecords {
    fn default() -> Self {
        Self {
            version: VERSION,
            invitations: Vec::new(),
            members: BTreeSet::new(),
            removed: BTreeMap::new(),
        }
    }
}

impl AuthorityRecords {
    /// Reads the file. A missing file is an error: without it, removed names could come back.
    pub fn read(dir: &Path) -> Result<Self, CredentialsError> {
        let path = dir.join(FILE);
        let text = files::read(&path, FILE_BYTES_MAX)?;
        let text = text.ok_or_else(|| CredentialsError::Absent { path: path.clone() })?;
        let unusable = |problem| CredentialsError::Unusable { path: path.clone(), problem };
        let records: Self =
            serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
        if records.version != VERSION {
            let problem = format!("it has version {}, not {VERSION}", records.version);
            return Err(unusable(problem));
        }
        Ok(records)
    }

    pub fn write(&self, dir: &Path) -> Result<(), CredentialsError> {
        let text = serde_json::to_string_pretty(self).expect("names and numbers are JSON");
        files::write(&dir.join(FILE), &text)
    }

    /// Forgets invitations that have expired, and removed names that may be used again.
    pub fn forget_expired(&mut self, now_ms: u64) {
        self.invitations.retain(|invitation| now_ms < invitation.expires_at_ms);
        self.removed.retain(|_, until_ms| now_ms < *until_ms);
    }

    pub fn names(&self) -> usize {
        self.members.len() + self.removed.len()
    }
}

/// The file, for the authority's removal.
pub(super) fn paths(dir: &Path) -> [PathBuf; 2] {
    [dir.join(FILE), dir.join(LOCK)]
}

/// Lets one process change the records at a time.
pub(super) fn lock(dir: &Path) -> Result<std::fs::File, CredentialsError> {
    files::lock(&dir.join(LOCK))
}
