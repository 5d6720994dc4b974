//! The lines that the holder process of an MCP server writes for the node. The holder shares its standard
//! error with the server, so the server can forge these lines. The node only shows them to people and decides
//! nothing by them.

/// The prefix of the line with the server's process id.
pub const PID_LINE: &str = "windlass-server-pid: ";

/// The prefix of the line that says how the server ended, or why it could not start.
pub const END_LINE: &str = "windlass-server-end: ";
