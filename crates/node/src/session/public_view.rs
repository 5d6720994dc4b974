//! What clients can read of a session without a request to its owner: its summary, and the number of its last
//! event.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;
use windlass_journal::SessionFacts;
use windlass_lifecycle::SessionMachine;
use windlass_protocol::api::{Ended, Session, SessionRow};
use windlass_protocol::{Seq, TurnId, TurnNo};

/// A session's summary, which its owner writes and all clients read.
#[derive(Debug)]
pub(super) struct PublicInfo {
    session: Mutex<Session>,
    /// The number of the running turn, 0 for none. Changes only while the summary is locked.
    running: AtomicU64,
}

impl PublicInfo {
    pub fn new(session: Session) -> Self {
        Self { session: Mutex::new(session), running: AtomicU64::new(0) }
    }

    pub fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().expect("no holder of this lock can panic")
    }

    /// The session as a row of the overview, without its node and without figures of use.
    pub fn row(&self) -> SessionRow {
        let session = self.session();
        let running = Some(self.running.load(Ordering::Relaxed)).filter(|number| *number != 0);
        SessionRow { turn: running.map(TurnNo), ..SessionRow::from(&*session) }
    }
}

#[derive(Debug)]
pub(super) struct PublicView {
    info: Arc<PublicInfo>,
    seen: watch::Sender<Seq>,
}

impl PublicView {
    pub fn new(info: Arc<PublicInfo>, seen: watch::Sender<Seq>) -> Self {
        Self { info, seen }
    }

    pub fn info(&self) -> MutexGuard<'_, Session> {
        self.info.session()
    }

    /// Makes a round's changes visible. `owed` is the session's end, if it is not in the journal yet.
    pub fn publish(
        &self,
        machine: &SessionMachine,
        facts: &SessionFacts,
        running: Option<TurnId>,
        owed: Option<Ended>,
    ) {
        {
            let mut info = self.info();
            let number = machine.current().map_or(0, |TurnNo(number)| number);
            self.info.running.store(number, Ordering::Relaxed);
            info.state = machine.state();
            info.turn = running;
            info.waiting = machine.waiting().len();
            info.turns = facts.last_turn.0;
            info.seq = facts.last_seq;
            info.output_bytes = facts.output_bytes;
            info.output_dropped_bytes = facts.output_dropped_bytes;
            info.messages_dropped = facts.messages_dropped;
            info.restarts = facts.restarts;
            info.worker_pid = facts.worker_pid;
            info.started_by = facts.started_by;
            info.start_figures = facts.start_figures;
            if info.capabilities != facts.capabilities {
                info.capabilities.clone_from(&facts.capabilities);
            }
            if let Some(worker) = &facts.worker
                && info.worker != *worker
            {
                info.worker.clone_from(worker);
            }
            if info.resume != facts.resume {
                info.resume.clone_from(&facts.resume);
            }
            info.ended.clone_from(&facts.ended);
            if info.ended.is_none() {
                info.ended = owed;
            }
        }
        let seq = facts.last_seq;
        self.seen.send_if_modified(|seen| std::mem::replace(seen, seq) != seq);
    }
}
