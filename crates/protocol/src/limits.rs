//! Every limit that more than one crate must agree on, each with what happens at it.

use std::time::Duration;

/// A frame's bytes after its first length word. A longer body is sent as several frames with
/// `more`; a longer frame is malformed and ends the connection that carried it.
pub const FRAME_BYTES_MAX: usize = 256 * 1024;

/// A frame's header. It is read into memory whole before it is parsed; a longer one is malformed.
pub const HEADER_BYTES_MAX: usize = 64 * 1024;

/// Body bytes that a sender puts into one frame, leaving room for a header of the largest size.
pub const CHUNK_BYTES_MAX: usize = FRAME_BYTES_MAX - HEADER_BYTES_MAX - 4;

/// The header of a worker's frame. It is shorter than any header may be, since the link adds its own
/// numbers to what the worker said. A longer one breaks the protocol.
pub const WORKER_HEADER_BYTES_MAX: usize = HEADER_BYTES_MAX - 1024;

/// What a keeper is told to run, as one message: plan, environment, paths. A session that needs more
/// is refused with `message_too_large` before anything is started; a keeper drops the connection.
pub const LAUNCH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A session's whole environment, as a program gets it: `NAME=value` and a zero byte each. The
/// kernel takes a quarter of the stack limit, 2 MiB where nobody changed it. More is refused with
/// `message_too_large` before anything is started.
pub const ENVIRONMENT_BYTES_MAX: usize = 1536 * 1024;

/// One variable of it, counted the same: the kernel's own limit. More is refused the same way.
pub const VARIABLE_BYTES_MAX: usize = 128 * 1024;

/// A text in an event that Windlass itself writes (a cause, a reason, a mechanism). It is cut there.
pub const REASON_BYTES_MAX: usize = 1024;

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

/// Host tool calls that one session may have open. One more fails with `overloaded`.
pub const TOOL_CALLS_MAX: usize = 1024;

/// A host tool's name, group and dot included. A longer one is refused.
pub const TOOL_NAME_BYTES_MAX: usize = 128;

/// Bytes of answers that a keeper holds for a worker that does not read them. The answer that would
/// pass it fails with `overloaded`.
pub const TOOL_RESULT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of calls that wait for one tool host to read them. The call that would pass it fails with
/// `overloaded`.
pub const TOOL_HOST_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Tools that one host may offer. A longer list is refused.
pub const HOST_TOOLS_MAX: usize = 1024;

/// The schema of one tool's arguments, as JSON text. A longer one is refused.
pub const TOOL_SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// All that a host declares, as JSON text. More is refused.
pub const HOST_DECLARATION_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How long a call may take where neither the code nor the tool's host says.
pub const TOOL_DEADLINE_MS_DEFAULT: u64 = 10 * 60 * 1000;

/// Bytes and entries of a workspace that a fork copies. A larger one is refused as
/// `workspace_too_large`.
pub const FORK_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
pub const FORK_ENTRIES_MAX: usize = 100_000;

/// Directories within each other that a fork copies.
pub const FORK_DEPTH_MAX: usize = 128;

/// How long a fork may copy a workspace. The session is held idle meanwhile.
pub const FORK_COPY_TIME: Duration = Duration::from_secs(120);

/// Things that a fork's answer names; what is left out is counted in the last.
pub const NOT_CARRIED_MAX: usize = 256;

/// Turns and calls within each other that are followed to find a circle. A deeper one is refused.
pub const WITHIN_DEPTH_MAX: usize = 64;
