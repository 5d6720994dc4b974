//! Messages to a keeper that are too long for one header: an attach with a large plan or environment, or a
//! prepare. The JSON text of such a message is split over the bodies of several frames. A message that fits
//! into one header is sent in one frame, so keepers and nodes of earlier releases understand it.

use bytes::{Bytes, BytesMut};

use crate::frame::{self, EncodeError, Frame};
use crate::limits::{CHUNK_BYTES_MAX, LAUNCH_BYTES_MAX};
use crate::link::ToKeeper;

/// Why frames are not a message to a keeper. Their connection cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum PartsError {
    #[error("a message is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("a message in parts is over the limit of {LAUNCH_BYTES_MAX} bytes")]
    TooLong,
    #[error("another message arrived between the parts of a message")]
    Interrupted,
}

/// Appends a message without a body: in one frame if it fits, else in parts. On an error, appends nothing.
pub fn encode(out: &mut Vec<u8>, message: &ToKeeper) -> Result<(), EncodeError> {
    match frame::encode(out, message, &[]) {
        Err(EncodeError::HeaderTooLong(_)) => {}
        done => return done,
    }
    let text = serde_json::to_vec(message)?;
    if text.len() > LAUNCH_BYTES_MAX {
        return Err(EncodeError::MessageTooLong { bytes: text.len(), limit: LAUNCH_BYTES_MAX });
    }
    let mut rest = &text[..];
    while !rest.is_empty() {
        let (part, later) = rest.split_at(rest.len().min(CHUNK_BYTES_MAX));
        frame::encode(out, &ToKeeper::Part { more: !later.is_empty() }, part)?;
        rest = later;
    }
    Ok(())
}

/// Joins the parts of messages. All other messages pass through.
#[derive(Debug, Default)]
pub struct Joiner {
    /// The parts so far of an incomplete message.
    begun: Option<BytesMut>,
}

impl Joiner {
    /// The message that this frame is or completes, with its body. `None` while parts are missing.
    pub fn take(&mut self, frame: Frame) -> Result<Option<(ToKeeper, Bytes)>, PartsError> {
        let more = match serde_json::from_slice(&frame.header)? {
            ToKeeper::Part { more } => more,
            _ if self.begun.is_some() => return Err(PartsError::Interrupted),
            message => return Ok(Some((message, frame.body))),
        };
        let mut text = self.begun.take().unwrap_or_default();
        if text.len() + frame.body.len() > LAUNCH_BYTES_MAX {
            return Err(PartsError::TooLong);
        }
        text.extend_from_slice(&frame.body);
        if more {
            self.begun = Some(text);
            return Ok(None);
        }
        match serde_json::from_slice(&text)? {
            ToKeeper::Part { .. } => Err(PartsError::Interrupted),
            message => Ok(Some((message, Bytes::new()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Decoder;
    use crate::link::{LINK, Prepare};
    use crate::{Epoch, LinkSeq};

    fn prepare(plan_bytes: usize) -> ToKeeper {
        ToKeeper::Prepare(Box::new(Prepare {
            shape: serde_json::json!({}),
            plan: Some("p".repeat(plan_bytes)),
            cgroups: Vec::new(),
        }))
    }

    fn attach() -> ToKeeper {
        ToKeeper::Attach { link: LINK, epoch: Epoch(1), after: LinkSeq(0), launch: None }
    }

    /// All messages of these bytes, and the number of frames.
    fn joined(bytes: &[u8]) -> (Vec<ToKeeper>, usize) {
        let (mut decoder, mut joiner) = (Decoder::default(), Joiner::default());
        decoder.push(bytes);
        let (mut messages, mut frames) = (Vec::new(), 0);
        while let Some(frame) = decoder.next_frame().expect("whole frames") {
            frames += 1;
            messages.extend(joiner.take(frame).expect("messages").map(|(message, _)| message));
        }
        (messages, frames)
    }

    #[test]
    fn a_message_is_one_frame_if_it_fits_and_the_same_in_parts_if_not() {
        for (plan_bytes, frames) in [(10, 1), (60_000, 1), (70_000, 1), (300_000, 2)] {
            let mut out = Vec::new();
            encode(&mut out, &prepare(plan_bytes)).expect("it fits");
            encode(&mut out, &attach()).expect("it fits");
            assert_eq!(joined(&out), (vec![prepare(plan_bytes), attach()], frames + 1));
        }
    }

    #[test]
    fn a_message_over_the_limit_is_refused_on_both_sides() {
        let mut out = b"before".to_vec();
        let refused = encode(&mut out, &prepare(LAUNCH_BYTES_MAX));
        assert!(matches!(refused, Err(EncodeError::MessageTooLong { .. })), "{refused:?}");
        assert_eq!(out, b"before");
        let mut joiner = Joiner::default();
        let part = || Frame {
            header: Bytes::from_static(br#"{"kind":"part","more":true}"#),
            body: vec![b' '; CHUNK_BYTES_MAX].into(),
        };
        let taken = (0..100).try_for_each(|_| joiner.take(part()).map(drop));
        assert!(matches!(taken, Err(PartsError::TooLong)), "{taken:?}");
    }

    #[test]
    fn nothing_comes_between_parts_and_no_part_is_made_of_parts() {
        let frame = |header: &'static str, body: &'static str| Frame {
            header: Bytes::from_static(header.as_bytes()),
            body: Bytes::from_static(body.as_bytes()),
        };
        let mut joiner = Joiner::default();
        assert!(joiner.take(frame(r#"{"kind":"part","more":true}"#, "{")).unwrap().is_none());
        let between = joiner.take(frame(r#"{"kind":"ack","after":1}"#, ""));
        assert!(matches!(between, Err(PartsError::Interrupted)), "{between:?}");
        let nested = Joiner::default().take(frame(r#"{"kind":"part"}"#, r#"{"kind":"part"}"#));
        assert!(matches!(nested, Err(PartsError::Interrupted)), "{nested:?}");
        let empty = Joiner::default().take(frame(r#"{"kind":"part"}"#, ""));
        assert!(matches!(empty, Err(PartsError::Malformed(_))), "{empty:?}");
    }
}
