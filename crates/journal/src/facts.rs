//! The facts of a session, folded from its events. Recovery and listings use them. Pure: no file, no clock.
//! The same fold runs when events are appended and when they are read back, so both give the same facts.

use serde::{Deserialize, Serialize};
use windlass_protocol::agent::ResumeToken;
use windlass_protocol::api::{DisplayRef, Ended, StdinWait};
use windlass_protocol::confinement::Confinement;
use windlass_protocol::event::{
    DropReason, EventKind, Receipt, StartFigures, StartedBy, StopCause, TurnError, Usage,
};
use windlass_protocol::refusal::PolicyRefusal;
use windlass_protocol::turn::ResultValue;
use windlass_protocol::{CallNo, Epoch, Event, LinkSeq, Outcome, Seq, SessionId, TurnId, TurnNo};

/// Maximum number of displays listed for one turn. Later displays are only in the events.
pub const DISPLAYS_MAX: usize = 1000;

/// Maximum number of claims of one turn. The node grants fewer.
const CLAIMS_MAX: usize = 16;

/// Maximum total bytes of the listed displays' mime types and ids. It bounds the facts, and thus every
/// segment's head, because the worker chooses these names.
pub const DISPLAY_NAMES_BYTES_MAX: usize = 256 * 1024;

/// The epoch of the node that creates a session.
pub const FIRST_EPOCH: Epoch = Epoch(1);

/// What a session is created with. It never changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewSession {
    pub id: SessionId,
    pub created_at_ms: u64,
    pub workspace: String,
    /// Which kind of worker: `python`.
    pub worker_kind: String,
    /// What the node needs to run the session again. The journal does not interpret it.
    pub spec: serde_json::Value,
    /// Segment bytes to keep. A value below [`crate::QUOTA_BYTES_MIN`] is raised to it.
    pub quota_bytes: u64,
}

/// The state that the events of a session add up to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionFacts {
    pub created: NewSession,
    /// The last event; 0 before the first.
    pub last_seq: Seq,
    /// When the node took the last event.
    pub last_at_ms: u64,
    /// The last event that came from the keeper; 0 before the first.
    pub last_link: LinkSeq,
    /// The last turn accepted; 0 before the first.
    pub last_turn: TurnNo,
    /// The end of the session's output: the offset of the next output byte.
    pub output_bytes: u64,
    /// Output bytes before that end that are not kept.
    pub output_dropped_bytes: u64,
    pub restarts: u32,
    /// Workers that have ended since a worker was last ready.
    #[serde(default)]
    pub ended_since_ready: u32,
    /// The worker's name for itself, once it is ready.
    pub worker: Option<String>,
    /// The worker's process id, while the worker runs.
    pub worker_pid: Option<u32>,
    /// How the last worker was started.
    #[serde(default)]
    pub started_by: Option<StartedBy>,
    /// What the start of the last worker cost, if that was asked for.
    #[serde(default)]
    pub start_figures: Option<StartFigures>,
    /// The epoch of the session's owner. It rises with each node that takes over the session. 0 for sessions of
    /// earlier releases, whose keepers know the epoch of their node.
    #[serde(default)]
    pub epoch: Epoch,
    /// The capabilities of the last worker. `None` for workers of earlier releases.
    #[serde(default)]
    pub capabilities: Option<Vec<String>>,
    pub messages_dropped: u64,
    /// The conversation that the session's agent claimed last.
    #[serde(default)]
    pub resume: Option<ResumeToken>,
    /// How the last worker was confined.
    #[serde(default)]
    pub confinement: Option<Confinement>,
    pub ended: Option<Ended>,
    /// Turns accepted and not ended, in the order accepted.
    pub open_turns: Vec<OpenTurn>,
    /// A turn whose code is incomplete. It counts as accepted with the last part of its code.
    pub(crate) accepting: Option<OpenTurn>,
    /// A display whose last part is still missing.
    pub(crate) partial_display: Option<PartialDisplay>,
}

/// A turn that is accepted and not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenTurn {
    pub number: TurnNo,
    pub id: TurnId,
    pub deadline_ms: Option<u64>,
    pub accepted_at_ms: u64,
    /// The event with the first part of the turn's code.
    pub accepted_seq: Seq,
    /// The event with the last part of the turn's code.
    pub code_to_seq: Seq,
    /// Where the turn's output starts and ends in the session's output.
    pub output_from: u64,
    pub output_to: u64,
    /// Bytes of the turn's own output. Background output of other turns may lie in the same range.
    pub output_bytes: u64,
    /// The cause of the first stop request.
    pub interrupt: Option<StopCause>,
    /// A full disk lost some of the turn's output.
    #[serde(default)]
    pub disk_full: bool,
    /// The input that the turn waits for, while it waits.
    pub stdin_wait: Option<StdinWait>,
    pub displays: Vec<DisplayRef>,
    /// The agent conversations that the turn has claimed or wants to claim.
    #[serde(default)]
    pub claims: Vec<TurnClaim>,
}

/// A turn's claim of an agent's conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnClaim {
    pub token: ResumeToken,
    call: CallNo,
    /// Whether the claim was granted. It holds until the turn ends.
    pub granted: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PartialDisplay {
    turn: Option<TurnNo>,
    mime: String,
    id: Option<String>,
    first: Seq,
    bytes: u64,
}

/// A turn that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    pub number: TurnNo,
    pub id: TurnId,
    pub outcome: Outcome,
    pub error: Option<TurnError>,
    pub usage: Usage,
    pub receipt: Option<Receipt>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<PolicyRefusal>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(
        default,
        deserialize_with = "ResultValue::present",
        skip_serializing_if = "Option::is_none"
    )]
    pub value: Option<ResultValue>,
    pub displays: Vec<DisplayRef>,
    pub output_from: u64,
    pub output_to: u64,
    /// Bytes of the turn's own output in that range.
    pub output_bytes: u64,
    pub accepted_at_ms: u64,
    pub ended_at_ms: u64,
    pub accepted_seq: Seq,
    pub ended_seq: Seq,
}

/// The numbers that the journal adds to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) seq: Seq,
    /// For output: the offset of its first byte in the session's output.
    pub(crate) out: Option<u64>,
    /// For a display: the event with its first part.
    pub(crate) first: Option<Seq>,
}

/// Stamps events before they are written. It does not change the facts: they change only after the events
/// are in the file.
#[derive(Debug)]
pub(crate) struct Stamper {
    seq: Seq,
    out: u64,
    partial: Option<PartialDisplay>,
}

impl Stamper {
    pub(crate) fn after(facts: &SessionFacts) -> Self {
        Self {
            seq: facts.last_seq,
            out: facts.output_bytes,
            partial: facts.partial_display.clone(),
        }
    }

    /// The end of the output before the next event.
    pub(crate) fn output_end(&self) -> u64 {
        self.out
    }

    pub(crate) fn stamp(&mut self, turn: Option<TurnNo>, kind: &EventKind, body: u64) -> Stamp {
        self.seq = self.seq.next();
        let mut stamp = Stamp { seq: self.seq, out: None, first: None };
        if let EventKind::Output { .. } = kind {
            stamp.out = Some(self.out);
        }
        self.out = self.out.saturating_add(output_advance(kind, body));
        if let EventKind::Display { .. } = kind {
            let first = match &self.partial {
                Some(partial) if partial.is_continued_by(turn, kind) => partial.first,
                _ => self.seq,
            };
            stamp.first = Some(first);
        }
        update_partial(&mut self.partial, turn, kind, stamp, body);
        stamp
    }
}

impl PartialDisplay {
    fn is_continued_by(&self, turn: Option<TurnNo>, kind: &EventKind) -> bool {
        matches!(kind, EventKind::Display { mime, id, .. }
            if self.turn == turn && self.mime == *mime && self.id == *id)
    }
}

/// How far an event moves the end of the output. Bytes lost to a full disk count, so that a reader sees the
/// gap. Bytes dropped for the quota were counted when they were appended.
fn output_advance(kind: &EventKind, body: u64) -> u64 {
    match kind {
        EventKind::Output { .. } => body,
        EventKind::OutputDropped {
            bytes,
            reason: DropReason::DiskFull | DropReason::NotCopied,
        } => *bytes,
        _ => 0,
    }
}

fn update_partial(
    partial: &mut Option<PartialDisplay>,
    turn: Option<TurnNo>,
    kind: &EventKind,
    stamp: Stamp,
    body: u64,
) {
    match kind {
        EventKind::Display { mime, id, more: true, .. } => {
            let first = stamp.first.unwrap_or(stamp.seq);
            let before = partial.take().filter(|old| old.first == first).map_or(0, |old| old.bytes);
            let (mime, id) = (mime.clone(), id.clone());
            *partial =
                Some(PartialDisplay { turn, mime, id, first, bytes: before.saturating_add(body) });
        }
        // A partial display ends with its last part, its turn or its worker.
        EventKind::Display { .. }
        | EventKind::TurnEnded { .. }
        | EventKind::WorkerEnded { .. }
        | EventKind::WorkerReady { .. } => *partial = None,
        _ => {}
    }
}

impl SessionFacts {
    pub fn new(created: NewSession) -> Self {
        Self {
            last_seq: Seq(0),
            last_at_ms: created.created_at_ms,
            last_link: LinkSeq(0),
            last_turn: TurnNo(0),
            output_bytes: 0,
            output_dropped_bytes: 0,
            restarts: 0,
            ended_since_ready: 0,
            worker: None,
            worker_pid: None,
            started_by: None,
            start_figures: None,
            epoch: FIRST_EPOCH,
            capabilities: None,
            messages_dropped: 0,
            resume: None,
            confinement: None,
            ended: None,
            open_turns: Vec::new(),
            accepting: None,
            partial_display: None,
            created,
        }
    }

    /// The turn of this number, if it is open.
    pub fn open_turn(&self, number: TurnNo) -> Option<&OpenTurn> {
        self.open_turns.iter().find(|turn| turn.number == number)
    }

    fn open_turn_mut(&mut self, number: Option<TurnNo>) -> Option<&mut OpenTurn> {
        let number = number?;
        self.open_turns.iter_mut().find(|turn| turn.number == number)
    }

    /// Applies the next event. If the event ends a turn, returns the record of that turn.
    pub(crate) fn apply(&mut self, event: &Event, stamp: Stamp, body: u64) -> Option<TurnRecord> {
        self.skip_event(stamp.seq, event.at_ms, event.link);
        let turn = event.turn;
        match &event.kind {
            EventKind::TurnAccepted { .. } => self.accept(event),
            EventKind::InterruptAsked { cause } => {
                if let Some(turn) = self.open_turn_mut(turn) {
                    turn.interrupt.get_or_insert(*cause);
                }
            }
            EventKind::Output { background, .. } => {
                let from = stamp.out.unwrap_or(self.output_bytes);
                self.output_bytes = from.saturating_add(body);
                if !background {
                    self.credit_output(turn, from, body);
                }
            }
            EventKind::OutputDropped { bytes, reason } => self.drop_output(turn, *bytes, *reason),
            EventKind::Display { .. } => self.add_display(event, stamp, body),
            EventKind::StdinWait { prompt, secret } => {
                if let Some(turn) = self.open_turn_mut(turn) {
                    turn.stdin_wait = Some(StdinWait { prompt: prompt.clone(), secret: *secret });
                }
            }
            EventKind::InputTaken { .. } => {
                if let Some(turn) = self.open_turn_mut(turn) {
                    turn.stdin_wait = None;
                }
            }
            EventKind::WorkerReady { worker, pid, restarts, start, capabilities, figures } => {
                self.start_figures = *figures;
                self.worker = Some(worker.clone());
                self.capabilities.clone_from(capabilities);
                self.started_by = Some(*start);
                self.worker_pid = Some(*pid);
                self.restarts = *restarts;
                self.ended_since_ready = 0;
            }
            EventKind::ToolCall { call, name, more: false, .. } => {
                self.note_claim(turn, *call, name);
            }
            EventKind::ToolEnded { call, ok, .. } => self.end_claim(turn, *call, *ok),
            EventKind::Confined(confinement) => self.confinement = Some(confinement.clone()),
            EventKind::WorkerEnded { .. } => {
                self.worker_pid = None;
                self.ended_since_ready = self.ended_since_ready.saturating_add(1);
            }
            EventKind::MessagesDropped { count, .. } => {
                self.messages_dropped = self.messages_dropped.saturating_add(*count);
            }
            EventKind::SessionEnded { reason, message, receipt } => {
                let (message, receipt) = (message.clone(), receipt.clone());
                self.ended = Some(Ended { reason: *reason, message, receipt });
            }
            // Handled below, or not part of the facts.
            _ => {}
        }
        update_partial(&mut self.partial_display, turn, &event.kind, stamp, body);
        self.finish(event)
    }

    /// Applies an event of a copy of the session's journal. The copy may leave events out. `body_bytes` is the length of
    /// the event's body.
    pub fn fold_copied(&mut self, event: &Event, body_bytes: u64) {
        self.apply_copied(event, body_bytes);
    }

    /// Applies an event of a copy, as [`Self::fold_copied`] does. Returns the event's place in turns and output, and the
    /// record of the turn that the event ends.
    pub(crate) fn apply_copied(
        &mut self,
        event: &Event,
        body_bytes: u64,
    ) -> (Stamp, Option<TurnRecord>) {
        let before = Seq(event.seq.0.saturating_sub(1));
        let mut stamper = Stamper { seq: before, ..Stamper::after(self) };
        let stamp = stamper.stamp(event.turn, &event.kind, body_bytes);
        let ended = self.apply(event, stamp, body_bytes);
        (stamp, ended)
    }

    /// Counts an event without applying it. Used alone for an event kind of a later release.
    pub(crate) fn skip_event(&mut self, seq: Seq, at_ms: u64, link: Option<LinkSeq>) {
        self.last_seq = seq;
        self.last_at_ms = at_ms;
        self.last_link = self.last_link.max(link.unwrap_or_default());
    }

    fn drop_output(&mut self, turn: Option<TurnNo>, bytes: u64, reason: DropReason) {
        if reason == DropReason::Quota {
            return;
        }
        let from = self.output_bytes;
        self.output_bytes = self.output_bytes.saturating_add(bytes);
        self.output_dropped_bytes = self.output_dropped_bytes.saturating_add(bytes);
        self.credit_output(turn, from, bytes);
        if let Some(turn) = self.open_turn_mut(turn).filter(|_| reason == DropReason::DiskFull) {
            turn.disk_full = true;
        }
    }

    fn accept(&mut self, event: &Event) {
        let EventKind::TurnAccepted { id, deadline_ms, more, .. } = &event.kind else { return };
        let Some(number) = event.turn else { return };
        let begun = self.accepting.take().filter(|begun| begun.number == number && begun.id == *id);
        let mut turn = begun.unwrap_or_else(|| OpenTurn {
            number,
            id: id.clone(),
            deadline_ms: *deadline_ms,
            accepted_at_ms: event.at_ms,
            accepted_seq: event.seq,
            code_to_seq: event.seq,
            output_from: self.output_bytes,
            output_to: self.output_bytes,
            output_bytes: 0,
            interrupt: None,
            disk_full: false,
            stdin_wait: None,
            displays: Vec::new(),
            claims: Vec::new(),
        });
        turn.code_to_seq = event.seq;
        if *more {
            self.accepting = Some(turn);
        } else {
            self.last_turn = self.last_turn.max(number);
            self.open_turns.push(turn);
        }
    }

    /// A turn asks for a conversation, if the tool that it calls is that of a claim.
    fn note_claim(&mut self, turn: Option<TurnNo>, call: CallNo, name: &str) {
        let Some(token) = ResumeToken::of_claim(name) else { return };
        if let Some(turn) = self.open_turn_mut(turn)
            && turn.claims.len() < CLAIMS_MAX
        {
            turn.claims.push(TurnClaim { token, call, granted: false });
        }
    }

    fn end_claim(&mut self, turn: Option<TurnNo>, call: CallNo, ok: bool) {
        let Some(turn) = self.open_turn_mut(turn) else { return };
        let Some(index) = turn.claims.iter().position(|claim| claim.call == call) else { return };
        if !ok {
            turn.claims.remove(index);
            return;
        }
        turn.claims[index].granted = true;
        let token = turn.claims[index].token.clone();
        self.resume = Some(token);
    }

    fn credit_output(&mut self, turn: Option<TurnNo>, from: u64, bytes: u64) {
        if let Some(turn) = self.open_turn_mut(turn) {
            // The output of a turn starts at its own first byte, not at the offset when it was accepted.
            if turn.output_bytes == 0 {
                turn.output_from = from;
            }
            turn.output_to = from.saturating_add(bytes);
            turn.output_bytes = turn.output_bytes.saturating_add(bytes);
        }
    }

    fn add_display(&mut self, event: &Event, stamp: Stamp, body: u64) {
        let EventKind::Display { mime, id, update, more: false } = &event.kind else { return };
        let before = match &self.partial_display {
            Some(partial) if Some(partial.first) == stamp.first => partial.bytes,
            _ => 0,
        };
        let shown = DisplayRef {
            seq: event.seq,
            mime: mime.clone(),
            id: id.clone(),
            bytes: before.saturating_add(body),
        };
        let Some(turn) = self.open_turn_mut(event.turn) else { return };
        let replaced =
            turn.displays.iter().position(|old| *update && id.is_some() && old.id == *id);
        let name_bytes =
            |display: &DisplayRef| display.mime.len() + display.id.as_ref().map_or(0, String::len);
        let named: usize = turn.displays.iter().map(name_bytes).sum();
        if named + name_bytes(&shown) > DISPLAY_NAMES_BYTES_MAX {
            return;
        }
        match replaced {
            Some(index) => turn.displays[index] = shown,
            None if turn.displays.len() < DISPLAYS_MAX => turn.displays.push(shown),
            None => {}
        }
    }

    fn finish(&mut self, event: &Event) -> Option<TurnRecord> {
        let EventKind::TurnEnded { outcome, error, usage, receipt, refusal, exit_code, value } =
            &event.kind
        else {
            return None;
        };
        let index = self.open_turns.iter().position(|turn| Some(turn.number) == event.turn)?;
        let turn = self.open_turns.remove(index);
        if let Some(next) = self.open_turns.first_mut().filter(|next| next.output_bytes == 0) {
            // The next turn starts now: output printed while it waited lies before its own output.
            next.output_from = self.output_bytes;
            next.output_to = self.output_bytes;
        }
        Some(TurnRecord {
            number: turn.number,
            id: turn.id,
            outcome: *outcome,
            error: error.clone(),
            usage: *usage,
            receipt: receipt.clone(),
            refusal: refusal.as_deref().cloned(),
            exit_code: *exit_code,
            value: value.clone(),
            displays: turn.displays,
            output_from: turn.output_from,
            output_to: turn.output_to,
            output_bytes: turn.output_bytes,
            accepted_at_ms: turn.accepted_at_ms,
            ended_at_ms: event.at_ms,
            accepted_seq: turn.accepted_seq,
            ended_seq: event.seq,
        })
    }
}
