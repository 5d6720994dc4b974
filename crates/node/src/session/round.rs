//! What one round of a session's owner has decided: records for the journal, and acts that are performed
//! once the records are written.

use bytes::Bytes;
use windlass_journal::NewEvent;
use windlass_protocol::event::EventKind;
use windlass_protocol::{CallNo, LinkSeq, TurnNo};

use super::ReplySender;
use super::calls::{CallPart, ToolAnswer};
use super::turns::Snapshot;
use crate::clock::now_ms;

#[derive(Debug, Default)]
pub(super) struct Round {
    /// In the order in which they are written.
    pub records: Vec<NewEvent>,
    pub acts: Vec<SessionAct>,
}

/// Something to do once this round's records are in the journal.
#[derive(Debug)]
pub(super) enum SessionAct {
    Start {
        turn: TurnNo,
    },
    Interrupt {
        turn: TurnNo,
    },
    Input {
        turn: TurnNo,
        bytes: Bytes,
        eof: bool,
        reply: ReplySender<Snapshot>,
    },
    Restart,
    StopKeeper,
    /// Pass a part of a host tool call on.
    PassCall(CallPart),
    /// Give the keeper an answer to a call, or a part of one.
    AnswerCall {
        turn: TurnNo,
        call: CallNo,
        answer: ToolAnswer,
    },
    /// Answer those who wait for this turn.
    Settle {
        turn: TurnNo,
    },
}

impl Round {
    /// Records something of the node's own.
    pub fn record(&mut self, turn: Option<TurnNo>, kind: EventKind, body: Bytes) {
        self.records.push(NewEvent { at_ms: now_ms(), turn, link: None, kind, body });
    }

    /// Records what the keeper has told.
    pub fn record_heard(
        &mut self,
        link: Option<LinkSeq>,
        turn: Option<TurnNo>,
        kind: EventKind,
        body: Bytes,
    ) {
        self.records.push(NewEvent { at_ms: now_ms(), turn, link, kind, body });
    }
}
