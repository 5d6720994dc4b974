//! Every limit that more than one crate must agree on, and what happens at each limit.

use std::time::Duration;

/// Maximum bytes of a frame after its first length word. A longer body is sent as several frames with `more`.
/// A longer frame is malformed and ends its connection.
pub const FRAME_BYTES_MAX: usize = 256 * 1024;

/// Maximum bytes of a frame's header. The whole header is read into memory before it is parsed. A longer
/// header is malformed.
pub const HEADER_BYTES_MAX: usize = 64 * 1024;

/// Maximum body bytes that a sender puts into one frame. This leaves space for the largest header.
pub const CHUNK_BYTES_MAX: usize = FRAME_BYTES_MAX - HEADER_BYTES_MAX - 4;

/// Maximum header bytes of a worker's frame. It is lower than [`HEADER_BYTES_MAX`], because the link adds its
/// own numbers to the worker's header. A longer header violates the protocol.
pub const WORKER_HEADER_BYTES_MAX: usize = HEADER_BYTES_MAX - 1024;

/// Maximum bytes of a launch message with plan, environment and paths. A session that needs more is refused
/// with `message_too_large` before anything is started. A keeper that receives more drops the connection.
pub const LAUNCH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Maximum bytes of a session's environment, counted as `NAME=value` and a zero byte per variable. The kernel
/// accepts a quarter of the stack limit, 2 MiB by default. More is refused with `message_too_large` before
/// anything is started.
pub const ENVIRONMENT_BYTES_MAX: usize = 1536 * 1024;

/// Maximum bytes of one environment variable, counted the same way: the kernel's limit. More is refused with
/// `message_too_large`.
pub const VARIABLE_BYTES_MAX: usize = 128 * 1024;

/// Maximum bytes of a text that Windlass writes into an event (a cause, a reason, a mechanism). A longer text
/// is cut.
pub const REASON_BYTES_MAX: usize = 1024;

/// Maximum bytes of one logical message, all its frames together (a turn's code, an input, a display). A
/// larger request is refused with `message_too_large`. A worker that sends more violates the protocol.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Maximum bytes of a turn's context, as JSON. A turn with a longer one is refused with `message_too_large`.
/// It goes into one header, together with the numbers of the link.
pub const TURN_CONTEXT_BYTES_MAX: usize = 32 * 1024;

/// Maximum bytes of a turn's value, as JSON. A larger value is left out.
pub const RESULT_VALUE_BYTES_MAX: usize = 16 * 1024;

/// Maximum depth of nested lists and objects in a turn's value. A deeper value is left out.
pub const RESULT_VALUE_DEPTH_MAX: usize = 32;

/// Maximum bytes of a worker's last standard error output in the event of its end. Earlier bytes are cut.
pub const LAST_STDERR_BYTES_MAX: usize = 2 * 1024;

/// Maximum number of turns that wait in one session. The next turn is refused with `overloaded`.
pub const WAITING_TURNS_MAX: usize = 64;

/// Maximum bytes of unacknowledged events that a keeper holds. At this limit, the keeper stops reading from
/// the worker until the node catches up.
pub const UNACKED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Maximum bytes of input that a keeper holds for a turn that has not asked for it yet. More is refused with
/// `input_too_large`.
pub const INPUT_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

/// Maximum number of columns and of rows of a session's terminal.
pub const TERMINAL_SIZE_MAX: u16 = 1000;

/// Output budget of a reply if the client sets none.
pub const OUTPUT_BYTES_DEFAULT: usize = 16 * 1024;

/// The largest output budget of a reply. A larger one is lowered to it.
pub const OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// How long a reply may wait for a turn. A longer `wait_ms` is lowered to it.
pub const WAIT_MS_MAX: u64 = 10 * 60 * 1000;

/// The longest deadline of a turn: one week. A longer one is refused.
pub const DEADLINE_MS_MAX: u64 = 7 * 24 * 3600 * 1000;

/// Maximum number of open host tool calls of one session. The next call fails with `overloaded`.
pub const TOOL_CALLS_MAX: usize = 1024;

/// Maximum bytes of a host tool's name, including group and dot. A longer name is refused.
pub const TOOL_NAME_BYTES_MAX: usize = 128;

/// Maximum bytes of tool results that a keeper holds for a worker that does not read them. A result that
/// would exceed it fails with `overloaded`.
pub const TOOL_RESULT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Maximum bytes of calls that wait until one tool host reads them. A call that would exceed it fails with
/// `overloaded`.
pub const TOOL_HOST_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Maximum number of tools of one host. A longer list is refused.
pub const HOST_TOOLS_MAX: usize = 1024;

/// Maximum bytes of the schema of one tool's arguments, as JSON text. A longer schema is refused.
pub const TOOL_SCHEMA_BYTES_MAX: usize = 64 * 1024;

/// Maximum bytes of a host's declaration, as JSON text. A longer declaration is refused.
pub const HOST_DECLARATION_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The deadline of a tool call if neither the code nor the tool host sets one.
pub const TOOL_DEADLINE_MS_DEFAULT: u64 = 10 * 60 * 1000;

/// Maximum bytes of a workspace that a fork copies. A larger workspace is refused with
/// `workspace_too_large`.
pub const FORK_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;

/// Maximum number of files and directories that a fork copies. More is refused with `workspace_too_large`.
pub const FORK_ENTRIES_MAX: usize = 100_000;

/// Maximum depth of nested directories that a fork copies.
pub const FORK_DEPTH_MAX: usize = 128;

/// Maximum time for the copy of a workspace. The session is held idle during the copy.
pub const FORK_COPY_TIME: Duration = Duration::from_secs(120);

/// Maximum number of items that a fork's reply names. The last item counts the rest.
pub const NOT_CARRIED_MAX: usize = 256;

/// Maximum depth of nested turns and calls that the deadlock check follows. A deeper nesting is refused.
pub const WITHIN_DEPTH_MAX: usize = 64;
