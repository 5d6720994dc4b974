//! Any bytes of a worker, in any portions: the decoder neither panics nor loses its way, and gives
//! what it would have given for all of them at once.

#![no_main]

use libfuzzer_sys::fuzz_target;
use windlass_fuzz::Input;
use windlass_protocol::frame::{Decoder, Frame, FrameError};
use windlass_protocol::limits::{FRAME_BYTES_MAX, HEADER_BYTES_MAX};
use windlass_protocol::worker::FromWorker;

fuzz_target!(|input: &[u8]| {
    // The number of portions, the length of each, and then what comes in them.
    let Some((count, rest)) = input.split_first() else { return };
    let (portions, rest) = rest.split_at(usize::from(*count).min(rest.len()));
    let bytes = Input::of(rest).frames();
    let mut at_once = Decoder::default();
    at_once.push(&bytes);
    let expected = drain(&mut at_once);

    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    let mut error = None;
    let mut rest = &bytes[..];
    let mut sizes = portions.iter().map(|&size| usize::from(size) + 1);
    while !rest.is_empty() && error.is_none() {
        // Past the listed portions, the rest comes in one.
        let size = sizes.next().unwrap_or(rest.len()).min(rest.len());
        let (portion, later) = rest.split_at(size);
        rest = later;
        decoder.push(portion);
        let (more, stop) = drain(&mut decoder);
        frames.extend(more);
        error = stop;
    }
    assert_eq!((frames, error), expected);
});

fn drain(decoder: &mut Decoder) -> (Vec<Frame>, Option<FrameError>) {
    let mut frames = Vec::new();
    loop {
        match decoder.next_frame() {
            Ok(Some(frame)) => {
                assert!(frame.header.len() <= HEADER_BYTES_MAX);
                assert!(frame.header.len() + frame.body.len() <= FRAME_BYTES_MAX);
                // Understood or not, it must not panic.
                let _ = serde_json::from_slice::<FromWorker>(&frame.header);
                frames.push(frame);
            }
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}
