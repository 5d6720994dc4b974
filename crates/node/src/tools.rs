//! Host tools: functions that a session's code calls and somebody else runs. Owns who offers what to
//! whom ([`hub`]), what waits to be sent to each host ([`host`]) the node's own tools ([`own`]) and
//! which calls are made within which ([`within`]).
//! The calls themselves are their sessions' own affair (`session`), the wire is the door's
//! (`http::tools`).

pub(crate) mod host;
pub(crate) mod hub;
pub(crate) mod own;
pub(crate) mod within;

pub(crate) use host::Host;
pub(crate) use hub::{Caller, HostId, Hub, Scope};
