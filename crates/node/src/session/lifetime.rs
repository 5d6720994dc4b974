//! A session's wall time limit, its idle timeout, its closing, and the resources that are removed at its end.

use std::path::PathBuf;
use std::time::Instant;

use super::ReplySender;
use super::alarm::Alarm;
use super::answer;
use super::idle::IdleWatch;
use crate::audit::SessionAudit;

#[derive(Debug)]
pub(super) struct Lifetime {
    pub alarm: Alarm,
    /// The session ends when no client uses it for this long.
    pub idle: IdleWatch,
    /// The limit on the session's wall time.
    pub wall_s: Option<u64>,
    /// When the wall time limit is reached.
    wall_at: Option<Instant>,
    closing: Option<Closing>,
    /// Removed when the session has ended.
    pub cgroups: Vec<PathBuf>,
    /// The session's temporary directory, if it has no private `/tmp` or installs packages.
    pub tmp: Option<PathBuf>,
    /// What the audit log tells of the session until its end.
    pub audit: SessionAudit,
}

/// A client's request to close the session.
#[derive(Debug)]
struct Closing {
    grace_ms: u64,
    replies: Vec<ReplySender<()>>,
}

impl Lifetime {
    pub fn new(idle: IdleWatch, wall_s: Option<u64>, wall_at: Option<Instant>) -> Self {
        let (alarm, cgroups, audit) = (Alarm::default(), Vec::new(), SessionAudit::default());
        Self { alarm, idle, wall_s, wall_at, closing: None, cgroups, tmp: None, audit }
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.wall_at.into_iter().chain(self.idle.due()).min()
    }

    /// Whether the wall time limit is reached. Returns true only once.
    pub fn wall_time_passed(&mut self, now: Instant) -> bool {
        self.wall_at.take_if(|at| *at <= now).is_some()
    }

    /// A client closes the session. The reply is sent when the session has ended.
    pub fn close(&mut self, grace_ms: u64, reply: ReplySender<()>) {
        self.closing = Some(Closing { grace_ms, replies: vec![reply] });
    }

    pub fn closing_grace_ms(&self) -> u64 {
        self.closing.as_ref().map_or(0, |closing| closing.grace_ms)
    }

    pub fn answer_closers(&mut self) {
        if let Some(closing) = self.closing.take() {
            closing.replies.into_iter().for_each(|reply| answer(reply, Ok(())));
        }
    }
}
