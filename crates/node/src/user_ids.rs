//! The user ids of sessions, on a node of root with a range of them. Each family of sessions (a session and its twins)
//! has a user id of its own outside of its user namespace. No other family gets it before the last session of the
//! family has ended.
//!
//! The record of an id is on disk before a process has the id: a symlink whose name is the id and whose target is the
//! family. A node that starts reads the records of live sessions. It removes all others whose id no process has.

mod range;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use windlass_beneath::Directory;
use windlass_procs::process_file;
use windlass_protocol::{ErrorCode, SessionId, TenantName};

pub use self::range::{UidRange, UidRangeError};
use crate::bounds::can_take_one_more;
use crate::config::Config;
use crate::failure::Failure;
use crate::session_dirs::{inside, state};

/// The mode of the directory of the records.
const MODE: u32 = 0o700;

/// Why a session gets no user id.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserIdError {
    #[error(
        "all {} user ids of `session_uids` ({range}) belong to live sessions; end sessions, or configure more ids",
        .range.count()
    )]
    Exhausted { range: UidRange },
    #[error(
        "tenant {tenant} has its part of the {} user ids of `session_uids` ({range}); end sessions of tenants, or configure \
         more ids",
        .range.count()
    )]
    TenantPart { tenant: TenantName, range: UidRange },
    #[error("cannot record the user id {uid} of session {session}: {cause}")]
    Record { uid: u32, session: SessionId, cause: io::Error },
}

impl From<UserIdError> for Failure {
    fn from(error: UserIdError) -> Self {
        match &error {
            UserIdError::Exhausted { .. } | UserIdError::TenantPart { .. } => {
                Self::of_node(ErrorCode::Overloaded, error.to_string())
            }
            UserIdError::Record { cause, .. } => {
                Self::while_making("cannot record the session's user id", cause)
            }
        }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct UserIds {
    config: Arc<Config>,
    table: Mutex<UserIdTable>,
}

impl UserIds {
    pub fn new(config: Arc<Config>) -> Self {
        Self { config, table: Mutex::default() }
    }

    /// The user id of a new session, which is the first of its family. `None` if the node gives its sessions none.
    pub fn acquire(&self, session: &SessionId) -> Result<Option<u32>, UserIdError> {
        let Some(range) = self.config.session_uids else { return Ok(None) };
        let mut table = self.lock();
        if let Some(tenant) = session.tenant().filter(|_| !table.has_part_left(range, session)) {
            return Err(UserIdError::TenantPart { tenant, range });
        }
        let uid = table.take(range, session).ok_or(UserIdError::Exhausted { range })?;
        if let Err(cause) = self.record(uid, session) {
            table.free(session);
            return Err(UserIdError::Record { uid, session: session.clone(), cause });
        }
        Ok(Some(uid))
    }

    /// Frees the user id of a family of which no process is left.
    pub fn release(&self, family: &SessionId) {
        let mut table = self.lock();
        let Some(uid) = table.free(family) else { return };
        let removed = self.directory().and_then(|records| records.remove_file(uid.to_string()));
        if let Err(error) = removed {
            tracing::warn!(uid, %family, %error, "cannot remove the record of a user id");
        }
    }

    /// Whether the sessions of this family have a user id of their own.
    pub fn has_one(&self, family: &SessionId) -> bool {
        self.lock().of_families.contains_key(family)
    }

    /// Whether a session has a user id of its own.
    pub fn are_in_use(&self) -> bool {
        !self.lock().of_families.is_empty()
    }

    /// Takes over the user ids of families that live, and removes the records of all others. Called once, before the
    /// first new session. The keeper of a session that could not be taken over goes on for its grace. No new session
    /// gets the user id that the processes of such a keeper have.
    pub fn take_over(&self, lives: impl Fn(&SessionId) -> bool) -> io::Result<()> {
        self.take_over_beside(lives, process_file::user_ids)
    }

    /// `ids_of_processes` tells the user ids of all processes of the machine.
    fn take_over_beside(
        &self,
        lives: impl Fn(&SessionId) -> bool,
        ids_of_processes: impl FnOnce() -> io::Result<BTreeSet<u32>>,
    ) -> io::Result<()> {
        let path = self.config.user_ids_dir();
        let records = match state(&self.config)?.directory(inside(&self.config, &path)?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            records => records?,
        };
        let mut table = self.lock();
        let mut unclaimed = Vec::new();
        for name in records.names()? {
            let Some(uid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let family = records.read_link(&name)?.into_os_string().into_string();
            let family = family.ok().and_then(|family| SessionId::parse(family).ok());
            match family.filter(&lives) {
                Some(family) => table.add(uid, family),
                None => unclaimed.push((uid, name)),
            }
        }
        if unclaimed.is_empty() {
            return Ok(());
        }
        let running = ids_of_processes()?;
        for (uid, name) in unclaimed {
            if running.contains(&uid) {
                tracing::warn!(
                    uid,
                    "processes of an earlier session have this user id; no session gets it"
                );
                table.used.insert(uid);
            } else {
                records.remove_file(&name)?;
            }
        }
        Ok(())
    }

    fn record(&self, uid: u32, session: &SessionId) -> io::Result<()> {
        let (records, name) = (self.directory()?, uid.to_string());
        match records.symlink(Path::new(session.as_str()), &name) {
            // Left by a release that failed: the id is free, or has been this session's.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                records.remove_file(&name)?;
                records.symlink(Path::new(session.as_str()), &name)
            }
            recorded => recorded,
        }
    }

    fn directory(&self) -> io::Result<Directory> {
        let path = self.config.user_ids_dir();
        state(&self.config)?.make_directory(inside(&self.config, &path)?, MODE)
    }

    fn lock(&self) -> MutexGuard<'_, UserIdTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which user ids are in use.
#[derive(Debug, Default)]
struct UserIdTable {
    of_families: HashMap<SessionId, u32>,
    used: BTreeSet<u32>,
    /// The id after the last one that was taken. An id is used again as late as possible.
    next: u32,
}

impl UserIdTable {
    /// The id of a family: the one that it has, or one that is free.
    fn take(&mut self, range: UidRange, family: &SessionId) -> Option<u32> {
        if let Some(uid) = self.of_families.get(family) {
            return Some(*uid);
        }
        let ids = range.ids();
        let next = self.next.clamp(*ids.start(), *ids.end());
        let mut candidates = (next..=*ids.end()).chain(*ids.start()..next);
        let uid = candidates.find(|uid| !self.used.contains(uid))?;
        self.next = uid.saturating_add(1);
        self.add(uid, family.clone());
        Some(uid)
    }

    /// Whether a family of a tenant can have an id: it has one, or its tenant and all tenants together leave others theirs.
    fn has_part_left(&self, range: UidRange, family: &SessionId) -> bool {
        let tenant = family.tenant();
        let own = self.of_families.keys().filter(|other| other.is_of(tenant.as_ref())).count();
        let of_tenants = self.of_families.keys().filter(|other| !other.is_of(None)).count();
        self.of_families.contains_key(family)
            || can_take_one_more(range.count() as usize, own, of_tenants)
    }

    fn add(&mut self, uid: u32, family: SessionId) {
        self.used.insert(uid);
        self.of_families.insert(family, uid);
    }

    fn free(&mut self, family: &SessionId) -> Option<u32> {
        let uid = self.of_families.remove(family)?;
        self.used.remove(&uid);
        Some(uid)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn id(text: &str) -> SessionId {
        SessionId::parse(text).unwrap()
    }

    fn no_processes() -> io::Result<BTreeSet<u32>> {
        Ok(BTreeSet::new())
    }

    fn ids(dir: &Path, range: &str) -> UserIds {
        let state = dir.join("state");
        std::fs::create_dir_all(&state).unwrap();
        let mut config = Config::new(dir.join("run"), state, PathBuf::new());
        config.session_uids = Some(UidRange::parse(range).unwrap());
        UserIds::new(Arc::new(config))
    }

    #[test]
    fn each_family_has_an_id_of_its_own_and_ids_are_reused_late() {
        let dir = tempfile::tempdir().unwrap();
        let ids = ids(dir.path(), "200000-200002");
        let take = |name: &str| ids.acquire(&id(name)).map_err(|error| error.to_string());
        assert_eq!(take("a"), Ok(Some(200_000)));
        assert_eq!(take("b"), Ok(Some(200_001)));
        assert_eq!(take("a"), Ok(Some(200_000)), "the family has one already");
        ids.release(&id("a"));
        assert_eq!(take("c"), Ok(Some(200_002)), "not the one that was just freed");
        assert_eq!(take("d"), Ok(Some(200_000)));
        let error = take("e").unwrap_err();
        assert!(error.starts_with("all 3 user ids of `session_uids` (200000-200002)"), "{error}");
        ids.release(&id("b"));
        assert_eq!(take("e"), Ok(Some(200_001)));
    }

    #[test]
    fn a_tenant_leaves_ids_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let ids = ids(dir.path(), "200000-200007");
        for (name, expected) in [
            ("a@acme", true),
            ("b@acme", true),
            ("c@acme", true),
            ("d@acme", true),
            ("e@acme", false),
            ("a@acme", true),
            ("a@other", true),
            ("b@other", true),
            ("c@other", false),
            ("a", true),
            ("b", true),
            ("c", false),
        ] {
            let found = ids.acquire(&id(name)).map_err(Failure::from);
            let is_overloaded = |failure: &Failure| failure.code == ErrorCode::Overloaded;
            assert_eq!(found.is_ok(), expected, "{name}");
            assert!(found.as_ref().err().is_none_or(is_overloaded), "{name}");
        }
    }

    #[test]
    fn a_node_that_starts_takes_over_the_ids_of_families_that_live() {
        let dir = tempfile::tempdir().unwrap();
        let range = "200000-200002";
        let earlier = ids(dir.path(), range);
        for name in ["lives", "ended"] {
            earlier.acquire(&id(name)).unwrap();
        }
        drop(earlier);
        let next = ids(dir.path(), range);
        next.take_over_beside(|family| *family == id("lives"), no_processes).unwrap();
        assert_eq!(next.acquire(&id("lives")).unwrap(), Some(200_000));
        assert_eq!(next.acquire(&id("new")).unwrap(), Some(200_001), "the ended one's");
        assert!(next.has_one(&id("lives")) && !next.has_one(&id("ended")));
        next.release(&id("lives"));
        next.release(&id("new"));
        assert!(!next.are_in_use());
        assert_eq!(std::fs::read_dir(dir.path().join("state/user-ids")).unwrap().count(), 0);
    }

    #[test]
    fn an_id_that_a_process_of_an_unknown_session_has_is_given_to_no_session() {
        let dir = tempfile::tempdir().unwrap();
        let range = "200000-200002";
        let earlier = ids(dir.path(), range);
        for name in ["unknown", "ended"] {
            earlier.acquire(&id(name)).unwrap();
        }
        let next = ids(dir.path(), range);
        next.take_over_beside(|_| false, || Ok([0, 200_000].into())).unwrap();
        // Also a new session of the same name is another session.
        assert_eq!(next.acquire(&id("unknown")).unwrap(), Some(200_001));
        assert_eq!(next.acquire(&id("new")).unwrap(), Some(200_002));
        assert!(next.acquire(&id("more")).is_err());
        // The next node finds the record again. The process has ended by then.
        let last = ids(dir.path(), range);
        last.take_over_beside(|_| false, no_processes).unwrap();
        assert_eq!(last.acquire(&id("more")).unwrap(), Some(200_000));
    }

    #[test]
    fn a_node_without_processes_to_ask_for_does_not_start() {
        let dir = tempfile::tempdir().unwrap();
        let range = "200000-200000";
        ids(dir.path(), range).acquire(&id("a")).unwrap();
        let unknown = || Err(io::Error::other("no /proc"));
        assert!(ids(dir.path(), range).take_over_beside(|_| false, unknown).is_err());
        assert!(ids(dir.path(), range).take_over_beside(|_| true, unknown).is_ok());
    }

    #[test]
    fn without_a_range_no_session_has_an_id_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::new(dir.path().join("run"), dir.path().into(), PathBuf::new());
        let ids = UserIds::new(Arc::new(config));
        ids.take_over(|_| true).unwrap();
        assert_eq!(ids.acquire(&id("a")).unwrap(), None);
        assert!(!ids.are_in_use());
    }
}
