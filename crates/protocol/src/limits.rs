//! Every limit that more than one crate must agree on, each with what happens at it.

/// A frame's bytes after its first length word. A longer body is sent as several frames with
/// `more`; a longer frame is malformed and ends the connection that carried it.
pub const FRAME_BYTES_MAX: usize = 256 * 1024;

/// A frame's header. It is read into memory whole before it is parsed; a longer one is malformed.
pub const HEADER_BYTES_MAX: usize = 64 * 1024;

/// Body bytes that a sender puts into one frame, leaving room for a header of the largest size.
pub const CHUNK_BYTES_MAX: usize = FRAME_BYTES_MAX - HEADER_BYTES_MAX - 4;

/// One logical message, all its frames together (a turn's code, an input, a display). A request
/// over it is refused with `message_too_large`; a worker that sends more breaks the protocol.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Turns that may wait in one session behind the running one. The next is refused as `overloaded`.
pub const WAITING_TURNS_MAX: usize = 64;

/// Bytes of events a keeper holds that its node has not acknowledged. Past it the keeper stops
/// reading the worker until the node catches up.
pub const UNACKED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Input that a keeper holds for a turn that has not asked for it yet. More is refused as
/// `input_too_large`.
pub const INPUT_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// Output bytes in a reply when the client names no budget.
pub const OUTPUT_BYTES_DEFAULT: usize = 16 * 1024;

/// The largest output budget a client may ask for; a larger one is lowered to it.
pub const OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// How long a reply may wait for a turn; a longer `wait_ms` is lowered to it.
pub const WAIT_MS_MAX: u64 = 10 * 60 * 1000;

/// The largest deadline of a turn: a week. A longer one is refused.
pub const DEADLINE_MS_MAX: u64 = 7 * 24 * 3600 * 1000;
