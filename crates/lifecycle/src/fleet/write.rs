//! One conditional write whose answer may be lost. It ends with the truth: stored, or the record that is in the way.

use windlass_protocol::Revision;
use windlass_protocol::fleet::Stamped;

/// What the store has under a name. Without a record the revision is the one that the next write expects: 0, or that
/// of a removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Current<R> {
    pub record: Option<R>,
    pub revision: Revision,
}

/// The store's answer to a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteAnswer {
    Stored(Revision),
    /// The revision is not the expected one.
    Conflict,
    /// No answer, or one that leaves open whether the write was done.
    Unknown,
}

/// What the caller does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteStep<R> {
    Write { record: R, expected: Revision },
    Read,
    Done(WriteEnd<R>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteEnd<R> {
    Stored(Revision),
    /// Another record is there.
    Conflict(Current<R>),
    /// The store gave no answer in all tries. The write may still be done later.
    Unavailable,
}

/// How often a write is sent before it ends as unavailable.
const TRIES_MAX: u32 = 4;

/// How often the store may leave a request without an answer before the write ends as unavailable.
const UNANSWERED_MAX: u32 = 4;

/// See the module documentation.
#[derive(Debug, Clone)]
pub struct ConditionalWrite<R> {
    record: R,
    expected: Revision,
    tries: u32,
    unanswered: u32,
}

impl<R: Stamped + Clone> ConditionalWrite<R> {
    pub fn start(record: R, expected: Revision) -> (Self, WriteStep<R>) {
        let step = WriteStep::Write { record: record.clone(), expected };
        (Self { record, expected, tries: 1, unanswered: 0 }, step)
    }

    /// The record that is written.
    pub fn record(&self) -> &R {
        &self.record
    }

    pub fn written(&mut self, answer: WriteAnswer) -> WriteStep<R> {
        match answer {
            WriteAnswer::Stored(revision) => WriteStep::Done(WriteEnd::Stored(revision)),
            WriteAnswer::Conflict | WriteAnswer::Unknown => WriteStep::Read,
        }
    }

    /// The store did not answer in time, neither the write nor the read.
    pub fn unanswered(&mut self) -> WriteStep<R> {
        self.unanswered += 1;
        if self.unanswered < UNANSWERED_MAX {
            WriteStep::Read
        } else {
            WriteStep::Done(WriteEnd::Unavailable)
        }
    }

    pub fn read(&mut self, current: Current<R>) -> WriteStep<R> {
        if current.record.as_ref().is_some_and(|found| found.stamp() == self.record.stamp()) {
            return WriteStep::Done(WriteEnd::Stored(current.revision));
        }
        if current.revision != self.expected {
            return WriteStep::Done(WriteEnd::Conflict(current));
        }
        if self.tries >= TRIES_MAX {
            return WriteStep::Done(WriteEnd::Unavailable);
        }
        self.tries += 1;
        WriteStep::Write { record: self.record.clone(), expected: self.expected }
    }
}
