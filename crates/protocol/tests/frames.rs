//! The frame codec with any split of the bytes, and with hostile senders.

use std::os::unix::ffi::OsStringExt;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;
use windlass_protocol::TurnNo;
use windlass_protocol::frame::{Decoder, EncodeError, Frame, FrameError, decode, encode};
use windlass_protocol::limits::{CHUNK_BYTES_MAX, FRAME_BYTES_MAX, HEADER_BYTES_MAX};
use windlass_protocol::worker::{FromWorker, ToWorker, WorkerOutcome};

proptest! {
    #[test]
    fn any_split_of_the_bytes_gives_the_same_frames(
        messages in vec(("[a-z]{0,40}", vec(any::<u8>(), 0..600)), 0..8),
        cuts in vec(any::<prop::sample::Index>(), 0..24),
    ) {
        let mut bytes = Vec::new();
        for (text, body) in &messages {
            encode(&mut bytes, &json!({ "text": text }), body).unwrap();
        }
        let expected: Vec<Frame> = messages
            .iter()
            .map(|(text, body)| Frame {
                header: json!({ "text": text }).to_string().into(),
                body: body.clone().into(),
            })
            .collect();
        let mut decoder = Decoder::default();
        let mut frames = Vec::new();
        for portion in portions(&bytes, &cuts) {
            decoder.push(portion);
            frames.extend(whole_frames(&mut decoder).unwrap());
        }
        prop_assert_eq!(frames, expected);
        prop_assert_eq!(decoder.pending(), 0);
    }

    #[test]
    fn any_bytes_at_all_give_the_same_frames_and_error_however_split(
        bytes in hostile_bytes(),
        cuts in vec(any::<prop::sample::Index>(), 0..24),
    ) {
        let mut at_once = Decoder::default();
        at_once.push(&bytes);
        let expected = until_error(&mut at_once);
        let mut decoder = Decoder::default();
        let mut got = (Vec::new(), None);
        for portion in portions(&bytes, &cuts) {
            decoder.push(portion);
            let (frames, error) = until_error(&mut decoder);
            got.0.extend(frames);
            got.1 = error;
            if got.1.is_some() {
                break;
            }
        }
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn two_frames_in_one_write_both_come_out() {
    let mut bytes = Vec::new();
    encode(
        &mut bytes,
        &ToWorker::TurnStart { turn: TurnNo(1), more: false, context: None },
        b"1+1",
    )
    .unwrap();
    encode(&mut bytes, &ToWorker::Interrupt { turn: TurnNo(1) }, b"").unwrap();
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    let frames = whole_frames(&mut decoder).unwrap();
    assert_eq!(frames.len(), 2);
    assert_eq!(&frames[0].header[..], br#"{"kind":"turn_start","turn":1}"#);
    assert_eq!(&frames[0].body[..], b"1+1");
    assert_eq!(&frames[1].header[..], br#"{"kind":"interrupt","turn":1}"#);
    assert_eq!(&frames[1].body[..], b"");
}

#[test]
fn a_partial_frame_is_kept_until_the_rest_comes() {
    let mut bytes = Vec::new();
    encode(&mut bytes, &json!({}), b"body").unwrap();
    let mut decoder = Decoder::default();
    for at in 0..bytes.len() - 1 {
        decoder.push(&bytes[at..=at]);
        assert_eq!(decoder.next_frame(), Ok(None));
        assert_eq!(decoder.pending(), at + 1);
    }
    decoder.push(&bytes[bytes.len() - 1..]);
    assert_eq!(&decoder.next_frame().unwrap().unwrap().body[..], b"body");
}

#[test]
fn a_frame_of_the_largest_size_passes() {
    let body = vec![7; CHUNK_BYTES_MAX];
    // The quotes are part of the header.
    let header = "x".repeat(HEADER_BYTES_MAX - 2);
    let mut bytes = Vec::new();
    encode(&mut bytes, &header, &body).unwrap();
    assert_eq!(bytes.len(), 4 + FRAME_BYTES_MAX);
    let mut decoder = Decoder::default();
    decoder.push(&bytes);
    let frame = decoder.next_frame().unwrap().unwrap();
    assert_eq!((frame.header.len(), frame.body.len()), (HEADER_BYTES_MAX, CHUNK_BYTES_MAX));
}

#[test]
fn what_does_not_fit_is_an_error_and_leaves_the_buffer_alone() {
    let header = |bytes: usize| "x".repeat(bytes - 2);
    let mut bytes = b"before".to_vec();
    let long = encode(&mut bytes, &header(HEADER_BYTES_MAX + 1), b"");
    assert!(matches!(long, Err(EncodeError::HeaderTooLong(65_537))), "{long:?}");
    let long = encode(&mut bytes, &header(HEADER_BYTES_MAX), &vec![0; CHUNK_BYTES_MAX + 1]);
    assert!(matches!(long, Err(EncodeError::TooLong(262_145))), "{long:?}");
    let path = std::path::PathBuf::from(std::ffi::OsString::from_vec(vec![0xff]));
    let no_json = encode(&mut bytes, &path, b"");
    assert!(matches!(no_json, Err(EncodeError::NoJson(_))), "{no_json:?}");
    assert_eq!(bytes, b"before");
}

#[test]
fn hostile_lengths_are_refused_before_memory_is_reserved() {
    let over = |limit: usize| u32::try_from(limit + 1).unwrap();
    for (words, error) in [
        (vec![u32::MAX], FrameError::TooLong(u32::MAX as usize)),
        (vec![over(FRAME_BYTES_MAX)], FrameError::TooLong(FRAME_BYTES_MAX + 1)),
        (vec![0], FrameError::HeaderPastEnd { rest: 0, header: 0 }),
        (vec![3], FrameError::HeaderPastEnd { rest: 3, header: 0 }),
        (vec![100, 97], FrameError::HeaderPastEnd { rest: 100, header: 97 }),
        (vec![100, u32::MAX], FrameError::HeaderTooLong(u32::MAX as usize)),
        (
            vec![over(HEADER_BYTES_MAX) + 4, over(HEADER_BYTES_MAX)],
            FrameError::HeaderTooLong(HEADER_BYTES_MAX + 1),
        ),
    ] {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        assert_eq!(decoder.next_frame(), Err(error.clone()), "{words:?}");
        // The error is final, because the framing is lost.
        assert_eq!(decoder.next_frame(), Err(error), "{words:?}");
        assert!(decoder.buffer().capacity() < 1024, "{words:?}");
    }
}

#[test]
fn a_promised_frame_reserves_nothing_until_it_comes() {
    let mut decoder = Decoder::default();
    decoder.push(&u32::try_from(FRAME_BYTES_MAX).unwrap().to_be_bytes());
    decoder.push(&2u32.to_be_bytes());
    assert_eq!(decoder.next_frame(), Ok(None));
    assert!(decoder.buffer().capacity() < 1024);
}

#[test]
fn a_word_of_a_worker_with_unknown_kind_or_fields_is_understood_as_far_as_known() {
    let parse = |text: &str| serde_json::from_str::<FromWorker>(text);
    assert_eq!(parse(r#"{"kind":"telemetry","turn":3,"x":[1]}"#).unwrap(), FromWorker::Unknown);
    assert_eq!(
        parse(r#"{"kind":"idle","turn":3,"outcome":"ok","mood":"good"}"#).unwrap(),
        FromWorker::Idle {
            turn: TurnNo(3),
            outcome: WorkerOutcome::Ok,
            error: None,
            exit_code: None,
            value: None,
        }
    );
    for malformed in ["", "{}", "[]", r#"{"kind":"idle"}"#, r#"{"kind":"idle","turn":-1}"#] {
        assert!(parse(malformed).is_err(), "{malformed:?}");
    }
}

/// Bytes that are similar enough to frames to pass the first length word.
fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![0u32..200, Just(u32::MAX), any::<u32>()];
    let piece = prop_oneof![
        3 => (length.clone(), length, vec(any::<u8>(), 0..100)).prop_map(|(rest, header, body)| {
            [&rest.to_be_bytes()[..], &header.to_be_bytes(), &body].concat()
        }),
        5 => vec(any::<u8>(), 0..100).prop_map(|body| {
            let mut bytes = Vec::new();
            encode(&mut bytes, &json!({}), &body).expect("a short body fits into a frame");
            bytes
        }),
        1 => vec(any::<u8>(), 0..40),
    ];
    vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn portions<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut offsets: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    offsets.extend([0, bytes.len()]);
    offsets.sort_unstable();
    offsets.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

fn whole_frames(decoder: &mut Decoder) -> Result<Vec<Frame>, FrameError> {
    std::iter::from_fn(|| decoder.next_frame().transpose()).collect()
}

fn until_error(decoder: &mut Decoder) -> (Vec<Frame>, Option<FrameError>) {
    let mut frames = Vec::new();
    loop {
        match decoder.next_frame() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}

#[test]
fn bytes_are_one_whole_frame_or_none() {
    let mut whole = Vec::new();
    encode(&mut whole, &json!({"kind": "x"}), b"body").unwrap();
    let frame = decode(whole.clone().into()).unwrap();
    assert_eq!((&frame.header[..], &frame.body[..]), (&br#"{"kind":"x"}"#[..], &b"body"[..]));
    for length in 0..whole.len() {
        let part = whole[..length].to_vec();
        assert_eq!(decode(part.into()), Err(FrameError::NotOne { bytes: length }), "{length}");
    }
    let more = [&whole[..], b"!"].concat();
    assert_eq!(decode(more.into()), Err(FrameError::NotOne { bytes: whole.len() + 1 }));
    let long = u32::MAX.to_be_bytes().to_vec();
    assert_eq!(decode(long.into()), Err(FrameError::TooLong(u32::MAX as usize)));
}
