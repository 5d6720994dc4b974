//! A record of a request while the request is served. Handlers add details. The record is written when the request is
//! answered, or earlier if a handler says so: a client may wait long for its answer.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use windlass_audit::{AuditActor, AuditDetail, AuditDetails, AuditEntry, AuditLog, shortened};

use crate::clock::now_ms;

/// In the extensions of a request that is recorded. Without a record, everything here does nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuditNote(Option<Arc<PendingRecord>>);

#[derive(Debug)]
struct PendingRecord {
    log: AuditLog,
    who: Arc<AuditActor>,
    sender: SenderKind,
    session: Mutex<Option<String>>,
    /// `None` once it is recorded.
    entry: Mutex<Option<AuditEntry>>,
}

/// Whether the door knows who sends a request. The refusals of both kinds are bounded, each by a number of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SenderKind {
    Known,
    /// Anyone.
    Unknown,
}

impl PendingRecord {
    fn entry(&self) -> MutexGuard<'_, Option<AuditEntry>> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The client has left, or the request was passed on and got no answer: what was done is unknown.
impl Drop for PendingRecord {
    fn drop(&mut self) {
        let left = self.entry().take();
        if let Some(mut entry) = left.filter(|_| self.sender == SenderKind::Known) {
            entry.what.add("unanswered", true);
            self.log.record(entry);
        }
    }
}

impl AuditNote {
    pub fn new(
        log: &AuditLog,
        who: AuditActor,
        sender: SenderKind,
        did: &'static str,
        what: AuditDetails,
    ) -> Self {
        let who = Arc::new(who);
        let entry = AuditEntry { at_ms: now_ms(), who: who.clone(), did, session: None, what };
        let (log, entry) = (log.clone(), Mutex::new(Some(entry)));
        let session = Mutex::default();
        Self(Some(Arc::new(PendingRecord { log, who, sender, session, entry })))
    }

    /// A record of something else that the same sender does, with the same session.
    pub fn another(&self, did: &'static str) -> Self {
        let Some(record) = &self.0 else { return Self::default() };
        let session = record.session.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (who, what) = (record.who.clone(), AuditDetails::default());
        let entry =
            AuditEntry { at_ms: now_ms(), who: who.clone(), did, session: session.clone(), what };
        let (log, entry, sender) = (record.log.clone(), Mutex::new(Some(entry)), record.sender);
        let session = Mutex::new(session);
        Self(Some(Arc::new(PendingRecord { log, who, sender, session, entry })))
    }

    pub fn is_present(&self) -> bool {
        self.0.is_some()
    }

    /// Whether nothing is recorded yet.
    pub fn is_pending(&self) -> bool {
        self.0.as_ref().is_some_and(|record| record.entry().is_some())
    }

    pub fn is_of_unknown(&self) -> bool {
        self.0.as_ref().is_some_and(|record| record.sender == SenderKind::Unknown)
    }

    pub fn add(&self, name: &'static str, value: impl Into<AuditDetail>) {
        self.change(|entry| entry.what.add(name, value));
    }

    /// `session` may be what a client has sent.
    pub fn set_session(&self, session: impl Into<String>) {
        let Some(record) = &self.0 else { return };
        let session = shortened(session.into());
        *record.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session.clone());
        self.change(|entry| entry.session = Some(session));
    }

    /// Records what was done. What is added later is lost.
    pub fn send(&self) {
        if let Some(record) = &self.0
            && let Some(entry) = record.entry().take()
        {
            record.log.record(entry);
        }
    }

    /// Records that it was refused.
    pub fn refuse(&self, code: &str) {
        self.add("refused", code);
        self.send();
    }

    /// Records nothing.
    pub fn discard(&self) {
        if let Some(record) = &self.0 {
            drop(record.entry().take());
        }
    }

    fn change(&self, change: impl FnOnce(&mut AuditEntry)) {
        if let Some(record) = &self.0
            && let Some(entry) = record.entry().as_mut()
        {
            change(entry);
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for AuditNote {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}
