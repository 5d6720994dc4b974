//! Secret rules that a client changed on a live session, and the ones before them. The session's record has the rules
//! that it was made with; a file for each family of sessions has the changed ones, so that the next node follows them
//! too. A family is named by its first session.

use std::io;
use std::path::PathBuf;

use windlass_protocol::SessionId;
use windlass_protocol::policy::SecretRuleSet;

use super::{PRIVATE, make_dir, read, write};

/// The files with changed rules, in a directory where no session can write.
#[derive(Debug)]
pub(crate) struct LiveRules {
    dir: PathBuf,
}

impl LiveRules {
    pub fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn file(&self, session: &SessionId) -> PathBuf {
        self.dir.join(session.as_str())
    }

    pub fn store(&self, session: &SessionId, rules: &SecretRuleSet) -> io::Result<()> {
        make_dir(&self.dir, 0o700)?;
        write(&self.file(session), &serde_json::to_vec(rules)?, PRIVATE)
    }

    /// The changed rules of a session, if there are any.
    pub fn load(&self, session: &SessionId) -> io::Result<Option<SecretRuleSet>> {
        let text = read(&self.file(session))?;
        Ok(text.map(|text| serde_json::from_str(&text)).transpose()?)
    }

    /// The session has ended.
    pub fn remove(&self, session: &SessionId) {
        match std::fs::remove_file(self.file(session)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%session, %error, "cannot remove the secret rules of an ended session");
            }
            _ => {}
        }
    }

    /// Removes the files of sessions that are gone.
    pub fn sweep(&self, knows: impl Fn(&SessionId) -> bool) {
        // Without the directory there is nothing to remove.
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            let session = entry.file_name().into_string().ok().map(SessionId::parse);
            if !matches!(session, Some(Ok(session)) if knows(&session)) {
                // The next node tries again.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}
