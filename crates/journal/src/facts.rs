//! The facts of a session, folded from its events: what recovery needs, and what a listing shows.
//! Pure: no file, no clock. The same fold runs when events are appended and when they are read
//! back, so both give the same facts.

use serde::{Deserialize, Serialize};
use windlass_protocol::api::{DisplayRef, Ended, StdinWait};
use windlass_protocol::confinement::Confinement;
use windlass_protocol::event::{
    DropReason, EventKind, Receipt, StartedBy, StopCause, TurnError, Usage,
};
use windlass_protocol::{Event, LinkSeq, Outcome, Seq, SessionId, TurnId, TurnNo};

/// Displays listed for one turn. Later ones are in the events, and not in the list.
pub const DISPLAYS_MAX: usize = 1000;

/// Bytes of the listed displays' mime types and ids together. It bounds the facts, and with them
/// every segment's head, whatever a worker names its displays.
pub const DISPLAY_NAMES_BYTES_MAX: usize = 256 * 1024;

/// What a session is created with; kept as it is for as long as the session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewSession {
    pub id: SessionId,
    pub created_at_ms: u64,
    pub workspace: String,
    /// Which kind of worker: `python`.
    pub worker_kind: String,
    /// Whatever the node needs to run it again; the journal does not look into it.
    pub spec: serde_json::Value,
    /// Segment bytes to keep; at least [`crate::QUOTA_BYTES_MIN`].
    pub quota_bytes: u64,
}

/// What the events of a session add up to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionFacts {
    pub created: NewSession,
    /// The last event; 0 before the first.
    pub last_seq: Seq,
    /// When the last event was taken in.
    pub last_at_ms: u64,
    /// The last event of the keeper's; 0 before the first.
    pub last_link: LinkSeq,
    /// The last turn accepted; 0 before the first.
    pub last_turn: TurnNo,
    /// The end of the session's output: where the next output byte will be.
    pub output_bytes: u64,
    /// Output bytes up to there that are not kept.
    pub output_dropped_bytes: u64,
    pub restarts: u32,
    /// Workers that have ended since one was last ready.
    #[serde(default)]
    pub ended_since_ready: u32,
    /// What the worker calls itself, once it is up.
    pub worker: Option<String>,
    /// The worker's process, while there is one.
    pub worker_pid: Option<u32>,
    /// How the last worker was started.
    #[serde(default)]
    pub started_by: Option<StartedBy>,
    /// What the last worker can do; unknown for workers of earlier releases.
    #[serde(default)]
    pub capabilities: Option<Vec<String>>,
    pub messages_dropped: u64,
    /// How the last worker was confined.
    #[serde(default)]
    pub confinement: Option<Confinement>,
    pub ended: Option<Ended>,
    /// Turns accepted and not ended, in the order accepted.
    pub open_turns: Vec<OpenTurn>,
    /// A turn of whose code more follows; it counts as accepted with its last part.
    pub(crate) accepting: Option<OpenTurn>,
    /// A display of which more follows.
    pub(crate) partial_display: Option<PartialDisplay>,
}

/// A turn that is accepted and not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenTurn {
    pub number: TurnNo,
    pub id: TurnId,
    pub deadline_ms: Option<u64>,
    pub accepted_at_ms: u64,
    /// The event with the first part of its code.
    pub accepted_seq: Seq,
    /// The event with the last part of its code.
    pub code_to_seq: Seq,
    /// Where its output starts and ends in the session's output.
    pub output_from: u64,
    pub output_to: u64,
    /// Bytes of output of its own; others' background output may lie between them.
    pub output_bytes: u64,
    /// Who asked first that it be stopped.
    pub interrupt: Option<StopCause>,
    /// Some of its output found no room on the disk.
    #[serde(default)]
    pub disk_full: bool,
    /// What it waits for, while it does.
    pub stdin_wait: Option<StdinWait>,
    pub displays: Vec<DisplayRef>,
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
    pub displays: Vec<DisplayRef>,
    pub output_from: u64,
    pub output_to: u64,
    /// Bytes of output of its own between them.
    pub output_bytes: u64,
    pub accepted_at_ms: u64,
    pub ended_at_ms: u64,
    pub accepted_seq: Seq,
    pub ended_seq: Seq,
}

/// What the journal itself gives an event, beside the event's own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) seq: Seq,
    /// For output: where its first byte is in the session's output.
    pub(crate) out: Option<u64>,
    /// For a display: the event with its first part.
    pub(crate) first: Option<Seq>,
}

/// Gives stamps to events that are about to be written, without touching the facts: those change
/// only once the events are in the file.
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

/// How far an event moves the end of the output. Bytes that a full disk lost have their place in
/// it, so that a reader sees the gap; those dropped for the quota had theirs when they came.
fn output_advance(kind: &EventKind, body: u64) -> u64 {
    match kind {
        EventKind::Output { .. } => body,
        EventKind::OutputDropped { bytes, reason: DropReason::DiskFull } => *bytes,
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
        // The rest of a display dies with its worker or its turn.
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
            capabilities: None,
            messages_dropped: 0,
            confinement: None,
            ended: None,
            open_turns: Vec::new(),
            accepting: None,
            partial_display: None,
            created,
        }
    }

    /// The turn, if it is open.
    pub fn open_turn(&self, number: TurnNo) -> Option<&OpenTurn> {
        self.open_turns.iter().find(|turn| turn.number == number)
    }

    fn open_turn_mut(&mut self, number: Option<TurnNo>) -> Option<&mut OpenTurn> {
        let number = number?;
        self.open_turns.iter_mut().find(|turn| turn.number == number)
    }

    /// Takes in the next event; when it ends a turn, gives that turn's record.
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
            EventKind::OutputDropped { bytes, reason: DropReason::DiskFull } => {
                let from = self.output_bytes;
                self.output_bytes = self.output_bytes.saturating_add(*bytes);
                self.output_dropped_bytes = self.output_dropped_bytes.saturating_add(*bytes);
                self.credit_output(turn, from, *bytes);
                if let Some(turn) = self.open_turn_mut(turn) {
                    turn.disk_full = true;
                }
            }
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
            EventKind::WorkerReady { worker, pid, restarts, start, capabilities } => {
                self.worker = Some(worker.clone());
                self.capabilities.clone_from(capabilities);
                self.started_by = Some(*start);
                self.worker_pid = Some(*pid);
                self.restarts = *restarts;
                self.ended_since_ready = 0;
            }
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
            // Told below, or nothing that the facts hold.
            _ => {}
        }
        update_partial(&mut self.partial_display, turn, &event.kind, stamp, body);
        self.finish(event)
    }

    /// Takes in that there was an event, and no more: its kind is one of a later release.
    pub(crate) fn skip_event(&mut self, seq: Seq, at_ms: u64, link: Option<LinkSeq>) {
        self.last_seq = seq;
        self.last_at_ms = at_ms;
        self.last_link = self.last_link.max(link.unwrap_or_default());
    }

    fn accept(&mut self, event: &Event) {
        let EventKind::TurnAccepted { id, deadline_ms, more } = &event.kind else { return };
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
        });
        turn.code_to_seq = event.seq;
        if *more {
            self.accepting = Some(turn);
        } else {
            self.last_turn = self.last_turn.max(number);
            self.open_turns.push(turn);
        }
    }

    fn credit_output(&mut self, turn: Option<TurnNo>, from: u64, bytes: u64) {
        if let Some(turn) = self.open_turn_mut(turn) {
            // A turn that waited starts where its own first byte is, not where it was accepted.
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
        let EventKind::TurnEnded { outcome, error, usage, receipt } = &event.kind else {
            return None;
        };
        let index = self.open_turns.iter().position(|turn| Some(turn.number) == event.turn)?;
        let turn = self.open_turns.remove(index);
        if let Some(next) = self.open_turns.first_mut().filter(|next| next.output_bytes == 0) {
            // The next turn starts now: what was printed while it waited lies before its output.
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
