//! What the fleet's copy has of a session's events: all of them but bulk output. Of each turn's output it has the
//! first and the last 64 KiB, and between them an `output_dropped` with the reason `not_copied`, which says how many
//! bytes are left out. Pure: reads and writes nothing.
//!
//! Output beyond the beginning is withheld until the turn ends. Another event is never withheld for it: the copy has
//! the events in order, so what is withheld before such an event is left out. Only the few kinds of events that
//! announce the end of a turn are withheld with the output.

use std::collections::VecDeque;

use bytes::Bytes;
use windlass_protocol::api::EventItem;
use windlass_protocol::event::{DropReason, EventKind};
use windlass_protocol::{Event, Seq, TurnNo};

use crate::event_stream::{item, write_item};

/// Number of bytes of a turn's output that the copy has from the beginning. The event that reaches it is copied whole.
pub(super) const HEAD_BYTES: usize = 64 * 1024;

/// Maximum number of bytes of withheld events, and of output in one of them.
pub(super) const TAIL_BYTES: usize = 64 * 1024;

/// Number of bytes of displays that the copy has of each turn. Later displays are copied without their bodies.
const DISPLAY_BYTES: usize = 1024 * 1024;

/// Maximum number of bytes of one event: the store takes messages of 1 MiB. A longer event is copied without its body.
const ITEM_BYTES_MAX: usize = 512 * 1024;

/// An event as the copy has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CopyItem {
    pub seq: Seq,
    /// A frame of an event stream.
    pub text: Vec<u8>,
}

impl CopyItem {
    fn new(event: Event, body: &Bytes) -> Self {
        Self::of(item(event, body))
    }

    fn of(mut item: EventItem) -> Self {
        let seq = item.event.seq;
        let mut text = Vec::new();
        write_item(&mut text, &item);
        if text.len() > ITEM_BYTES_MAX {
            (item.text, item.base64) = (None, None);
            text.clear();
            write_item(&mut text, &item);
        }
        if text.len() > ITEM_BYTES_MAX {
            let reason = "the event is too large for the fleet's copy".to_owned();
            item.event.kind = EventKind::MessagesDropped { count: 1, reason };
            item.bytes = 0;
            text.clear();
            write_item(&mut text, &item);
        }
        Self { seq, text }
    }
}

/// How far the output goes that was read for the copy. It finds output that the journal has dropped before it was read.
#[derive(Debug)]
pub(super) struct ReadOutput {
    /// Where the output is behind the last event. `None` if the reading began inside a session.
    end: Option<u64>,
}

impl ReadOutput {
    /// Reading begins behind this event.
    pub fn behind(after: Seq) -> Self {
        Self { end: (after == Seq(0)).then_some(0) }
    }

    /// What the copy says about the events that were dropped right before `next`, where the output is at `start`. It has the
    /// number of the last one of them.
    pub fn dropped_before(&mut self, next: &Event, start: Option<u64>) -> Option<Event> {
        let start = start?;
        let bytes = start.saturating_sub(self.end.replace(start)?);
        // Which turns wrote the output is not known.
        (bytes > 0).then(|| Event {
            seq: Seq(next.seq.0.saturating_sub(1)),
            at_ms: next.at_ms,
            turn: None,
            link: None,
            kind: EventKind::OutputDropped { bytes, reason: DropReason::NotCopied },
        })
    }

    /// Counts the next event.
    pub fn add(&mut self, kind: &EventKind, body_bytes: u64) {
        let bytes = match kind {
            EventKind::Output { .. } => body_bytes,
            EventKind::OutputDropped { bytes, reason: DropReason::DiskFull } => *bytes,
            _ => 0,
        };
        self.end = self.end.map(|end| end.saturating_add(bytes));
    }
}

/// See the module documentation. Events go in one by one, in order.
#[derive(Debug, Default)]
pub(super) struct OutputTrim {
    /// The turn that writes output. Output of threads that outlived their turns counts for it. Before a turn writes, such
    /// output has a beginning of its own.
    running: Option<TurnNo>,
    head_bytes: usize,
    display_bytes: usize,
    tail: WithheldTail,
}

impl OutputTrim {
    /// Appends to `copied` what the copy has now.
    pub fn push(&mut self, event: Event, body: &Bytes, copied: &mut VecDeque<CopyItem>) {
        match &event.kind {
            EventKind::Output { background, .. } => {
                if !background {
                    self.run(event.turn, copied);
                }
                self.output(event, body, copied);
            }
            EventKind::Display { .. } => {
                self.tail.leave_out(copied);
                self.display_bytes = self.display_bytes.saturating_add(body.len());
                let mut shown = item(event, body);
                if self.display_bytes > DISPLAY_BYTES {
                    (shown.text, shown.base64) = (None, None);
                }
                copied.push_back(CopyItem::of(shown));
            }
            EventKind::TurnEnded { .. }
                if self.running.is_none_or(|own| event.turn == Some(own)) =>
            {
                self.end(copied);
                copied.push_back(CopyItem::new(event, body));
            }
            EventKind::SessionEnded { .. } => {
                self.end(copied);
                copied.push_back(CopyItem::new(event, body));
            }
            kind if announces_end(kind) && !self.tail.is_empty() => {
                self.tail.withhold(WithheldItem::other(event, body), copied);
            }
            _ => {
                self.tail.leave_out(copied);
                copied.push_back(CopyItem::new(event, body));
            }
        }
    }

    /// Output of this turn begins or goes on.
    fn run(&mut self, turn: Option<TurnNo>, copied: &mut VecDeque<CopyItem>) {
        if turn.is_none() || turn == self.running {
            return;
        }
        if self.running.is_some() {
            // The journal does not have the end of the former turn.
            self.end(copied);
        } else {
            // Background output between turns is not the beginning of this turn.
            self.tail.leave_out(copied);
            self.head_bytes = 0;
        }
        self.running = turn;
    }

    fn output(&mut self, event: Event, body: &Bytes, copied: &mut VecDeque<CopyItem>) {
        if self.head_bytes < HEAD_BYTES {
            self.head_bytes += body.len();
            copied.push_back(CopyItem::new(event, body));
        } else {
            self.tail.withhold_output(event, body, copied);
        }
    }

    /// The turn's output is complete.
    fn end(&mut self, copied: &mut VecDeque<CopyItem>) {
        self.tail.emit(copied);
        (self.running, self.head_bytes, self.display_bytes) = (None, 0, 0);
    }
}

/// Whether an event of this kind is mostly one of the last before the end of its turn.
fn announces_end(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::InterruptAsked { .. }
            | EventKind::LimitReached { .. }
            | EventKind::WorkerEnded { .. }
            | EventKind::ProtocolBroken { .. }
            | EventKind::OutputDropped { .. }
            | EventKind::MessagesDropped { .. }
    )
}

/// Events that wait for the end of their turn, at most [`TAIL_BYTES`] and one event.
#[derive(Debug, Default)]
struct WithheldTail {
    items: VecDeque<WithheldItem>,
    bytes: usize,
    left_out: Option<LeftOutOutput>,
}

#[derive(Debug)]
struct WithheldItem {
    copy: CopyItem,
    at_ms: u64,
    turn: Option<TurnNo>,
    /// Number of bytes of output in the event, if it is one of output.
    output_bytes: Option<u64>,
}

/// Output that the copy does not have.
#[derive(Debug)]
struct LeftOutOutput {
    /// The last event of it.
    seq: Seq,
    at_ms: u64,
    turn: Option<TurnNo>,
    bytes: u64,
}

impl WithheldItem {
    fn other(event: Event, body: &Bytes) -> Self {
        let (at_ms, turn) = (event.at_ms, event.turn);
        Self { copy: CopyItem::new(event, body), at_ms, turn, output_bytes: None }
    }
}

impl WithheldTail {
    fn is_empty(&self) -> bool {
        self.items.is_empty() && self.left_out.is_none()
    }

    fn withhold_output(&mut self, event: Event, body: &Bytes, copied: &mut VecDeque<CopyItem>) {
        let mut body = body.clone();
        if body.len() > TAIL_BYTES {
            // It fills the tail alone. Its own beginning can be left out only with an event before it, whose number the
            // item about left-out output has.
            self.drain(copied);
            let cut = end_of(&body, TAIL_BYTES);
            match &mut self.left_out {
                Some(left_out) => left_out.bytes = left_out.bytes.saturating_add(cut as u64),
                None => {
                    self.count_left_out(event.seq, event.at_ms, event.turn, body.len() as u64);
                    return;
                }
            }
            body = body.slice(cut..);
        }
        let output_bytes = Some(body.len() as u64);
        let withheld = WithheldItem { output_bytes, ..WithheldItem::other(event, &body) };
        self.withhold(withheld, copied);
    }

    fn withhold(&mut self, item: WithheldItem, copied: &mut VecDeque<CopyItem>) {
        self.bytes += item.copy.text.len();
        self.items.push_back(item);
        while self.bytes > TAIL_BYTES && self.items.len() > 1 {
            self.drop_first(copied);
        }
    }

    /// Leaves the first event out if it is output. Otherwise copies it.
    fn drop_first(&mut self, copied: &mut VecDeque<CopyItem>) {
        let Some(WithheldItem { copy, at_ms, turn, output_bytes }) = self.items.pop_front() else {
            return;
        };
        self.bytes -= copy.text.len();
        match output_bytes {
            Some(bytes) => self.count_left_out(copy.seq, at_ms, turn, bytes),
            None => {
                self.tell_left_out(copied);
                copied.push_back(copy);
            }
        }
    }

    fn count_left_out(&mut self, seq: Seq, at_ms: u64, turn: Option<TurnNo>, bytes: u64) {
        let before = self.left_out.as_ref().map_or(0, |left_out| left_out.bytes);
        let bytes = before.saturating_add(bytes);
        self.left_out = Some(LeftOutOutput { seq, at_ms, turn, bytes });
    }

    fn drain(&mut self, copied: &mut VecDeque<CopyItem>) {
        while !self.items.is_empty() {
            self.drop_first(copied);
        }
    }

    /// Leaves out all withheld output.
    fn leave_out(&mut self, copied: &mut VecDeque<CopyItem>) {
        self.drain(copied);
        self.tell_left_out(copied);
    }

    /// Copies all that is withheld.
    fn emit(&mut self, copied: &mut VecDeque<CopyItem>) {
        self.tell_left_out(copied);
        self.bytes = 0;
        copied.extend(self.items.drain(..).map(|item| item.copy));
    }

    fn tell_left_out(&mut self, copied: &mut VecDeque<CopyItem>) {
        let Some(LeftOutOutput { seq, at_ms, turn, bytes }) = self.left_out.take() else { return };
        let kind = EventKind::OutputDropped { bytes, reason: DropReason::NotCopied };
        let event = Event { seq, at_ms, turn, link: None, kind };
        copied.push_back(CopyItem::new(event, &Bytes::new()));
    }
}

/// Where the last `count` bytes of a text begin, or the first whole character in them.
fn end_of(body: &[u8], count: usize) -> usize {
    let from = body.len() - count;
    let inside = body[from..].iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
    from + inside
}

#[cfg(test)]
mod tests;
