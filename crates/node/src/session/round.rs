//! The decisions of one round of a session's owner: records for the journal, and acts. The acts are performed
//! after the records are written.

use bytes::Bytes;
use windlass_journal::NewEvent;
use windlass_protocol::event::{EventKind, TurnError, Usage};
use windlass_protocol::host::CancelReason;
use windlass_protocol::turn::ResultValue;
use windlass_protocol::{CallNo, LinkSeq, TurnNo};

use super::calls::{CallPart, ToolAnswer};
use super::turns::Snapshot;
use super::{InputRequest, ReplySender};
use crate::clock::now_ms;

#[derive(Debug, Default)]
pub(super) struct Round {
    /// In the order of writing.
    pub records: Vec<NewEvent>,
    pub acts: Vec<SessionAct>,
}

/// Something to do after this round's records are in the journal.
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
        input: InputRequest,
        reply: ReplySender<Snapshot>,
    },
    Restart,
    StopKeeper,
    /// Pass a part of a host tool call on to its tool host.
    PassCall(CallPart),
    /// The code has given a call up.
    CancelCall {
        turn: TurnNo,
        call: CallNo,
        reason: CancelReason,
    },
    /// Send the keeper the answer to a call, or a part of the answer.
    AnswerCall {
        turn: TurnNo,
        call: CallNo,
        answer: ToolAnswer,
    },
    /// Send the replies that wait for this turn.
    Settle {
        turn: TurnNo,
    },
}

impl Round {
    /// Adds a record of the node itself.
    pub fn record(&mut self, turn: Option<TurnNo>, kind: EventKind, body: Bytes) {
        self.records.push(NewEvent { at_ms: now_ms(), turn, link: None, kind, body });
    }

    /// Whether this round gives the keeper the turn. An event that the keeper held may have started it.
    pub fn starts(&self, turn: TurnNo) -> bool {
        self.acts.iter().any(|act| matches!(act, SessionAct::Start { turn: own } if *own == turn))
    }

    /// Adds a record of an event from the keeper.
    pub fn record_from_keeper(
        &mut self,
        link: Option<LinkSeq>,
        turn: Option<TurnNo>,
        kind: EventKind,
        body: Bytes,
    ) {
        self.records.push(NewEvent { at_ms: now_ms(), turn, link, kind, body });
    }
}

/// A keeper's report of a turn's end.
#[derive(Debug, Default)]
pub(super) struct TurnEndReport {
    pub turn: TurnNo,
    pub link: Option<LinkSeq>,
    pub error: Option<TurnError>,
    pub usage: Option<Usage>,
    pub exit_code: Option<i32>,
    pub value: Option<ResultValue>,
}
