//! What the processes of live sessions use, read from their cgroups when a client asks. All clients share the readings:
//! a session is read at most once a second, however many clients ask. Reads nothing while no client asks.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use windlass_procs::cgroup::CgroupUsage;
use windlass_protocol::SessionId;

use crate::clock::now_ms;
use crate::failure::Failure;
use crate::tenant_usage::MeasuredCgroups;

/// How long a reading is given to other clients too.
const READING_LASTS: Duration = Duration::from_secs(1);

/// What the processes of a session used at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UsageReading {
    pub usage: CgroupUsage,
    pub at_ms: u64,
}

/// A live session to read.
pub(crate) type ReadSession = (SessionId, Arc<MeasuredCgroups>);

/// The readings of the last second.
#[derive(Debug)]
pub(crate) struct SessionFigures {
    recent: Arc<Mutex<RecentReadings>>,
    /// One request reads at a time. The next one finds its readings, and waits without a thread.
    reader: Arc<Semaphore>,
}

impl Default for SessionFigures {
    fn default() -> Self {
        Self { recent: Arc::default(), reader: Arc::new(Semaphore::new(1)) }
    }
}

impl SessionFigures {
    /// What these sessions use. A session without a usable cgroup is left out.
    pub async fn of(
        &self,
        sessions: Vec<ReadSession>,
    ) -> Result<HashMap<SessionId, UsageReading>, Failure> {
        if sessions.is_empty() {
            return Ok(HashMap::new());
        }
        let failed = |error: &dyn std::fmt::Display| Failure::internal(&error.to_string());
        let turn = self.reader.clone().acquire_owned().await.map_err(|error| failed(&error))?;
        let recent = self.recent.clone();
        // Two files of each session: thousands of sessions would block the thread that serves turns.
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut recent = recent.lock().unwrap_or_else(PoisonError::into_inner);
            recent.read(sessions, Instant::now(), |dirs| UsageReading {
                usage: CgroupUsage::of(dirs),
                at_ms: now_ms(),
            })
        });
        read.await.map_err(|error| failed(&error))
    }
}

/// The readings of the last second, by session.
#[derive(Debug, Default)]
struct RecentReadings(HashMap<SessionId, RecentReading>);

#[derive(Debug)]
struct RecentReading {
    /// Tells a session from an earlier one of the same id.
    cgroups: Arc<MeasuredCgroups>,
    reading: UsageReading,
    read_at: Instant,
}

impl RecentReadings {
    /// The readings of these sessions. `measure` reads those that have no recent one.
    fn read(
        &mut self,
        sessions: Vec<ReadSession>,
        now: Instant,
        measure: impl Fn(&[PathBuf]) -> UsageReading,
    ) -> HashMap<SessionId, UsageReading> {
        self.0.retain(|_, recent| now.saturating_duration_since(recent.read_at) < READING_LASTS);
        let mut all = HashMap::with_capacity(sessions.len());
        for (id, cgroups) in sessions {
            // The cgroups of an ended session are removed, or belong to the next session of its id.
            if cgroups.dirs.is_empty() || cgroups.is_counted() {
                continue;
            }
            let known = self.0.get(&id).filter(|recent| Arc::ptr_eq(&recent.cgroups, &cgroups));
            if let Some(reading) = known.map(|recent| recent.reading) {
                all.insert(id, reading);
                continue;
            }
            let reading = measure(&cgroups.dirs);
            self.0.insert(id.clone(), RecentReading { cgroups, reading, read_at: now });
            all.insert(id, reading);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn id(text: &str) -> SessionId {
        SessionId::parse(text).unwrap()
    }

    fn cgroups(dir: &str) -> Arc<MeasuredCgroups> {
        Arc::new(MeasuredCgroups::new(vec![PathBuf::from(dir)]))
    }

    #[test]
    fn a_session_is_read_once_a_second_and_only_if_a_client_asks_for_it() {
        let (a, b, other_a) = (cgroups("/a"), cgroups("/b"), cgroups("/a"));
        let mut recent = RecentReadings::default();
        let (reads, start) = (Cell::new(0), Instant::now());
        for (at_ms, asked, expected, known) in [
            (0, vec![("a", &a)], 1, 1),
            (10, vec![("a", &a), ("b", &b)], 2, 2),
            (999, vec![("a", &a), ("b", &b)], 2, 2),
            // The reading of `b` is 10 ms younger.
            (1005, vec![("a", &a), ("b", &b)], 3, 2),
            (1200, vec![("a", &other_a)], 4, 1),
            (9000, vec![("b", &b)], 5, 1),
        ] {
            let sessions: Vec<ReadSession> =
                asked.iter().map(|(name, cgroups)| (id(name), (*cgroups).clone())).collect();
            let now = start + Duration::from_millis(at_ms);
            let found = recent.read(sessions, now, |_| {
                reads.set(reads.get() + 1);
                UsageReading { usage: CgroupUsage::default(), at_ms }
            });
            assert_eq!((found.len(), reads.get()), (asked.len(), expected), "{at_ms}");
            assert_eq!(recent.0.len(), known, "{at_ms}");
        }
    }

    #[tokio::test]
    async fn the_cgroups_of_a_session_are_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory.current"), "4096\n").unwrap();
        let figures = SessionFigures::default();
        let (measured, none) =
            (MeasuredCgroups::new(vec![dir.path().to_owned()]), MeasuredCgroups::new(Vec::new()));
        let sessions = vec![(id("a"), Arc::new(measured)), (id("b"), Arc::new(none))];
        let found = figures.of(sessions).await.unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[&id("a")].usage, CgroupUsage { memory_bytes: Some(4096), cpu_time: None });
    }
}
