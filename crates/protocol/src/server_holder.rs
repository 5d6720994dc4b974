//! What the holder of an MCP server says of it to the node, each on a line of the standard error
//! that it shares with the server. Only told to people: nothing is decided by it, since the server
//! could say the same.

/// Starts the line that has the server's process id.
pub const PID_LINE: &str = "windlass-server-pid: ";

/// Starts the line that says how the server ended, or why it could not be started.
pub const END_LINE: &str = "windlass-server-end: ";
