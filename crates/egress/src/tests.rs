//! The proxy over real sockets: a client on one side, a host on the other, and nothing between them
//! that the rules do not allow.

mod clients;
mod http;
mod limits;
mod literals;
mod tunnels;
mod world;
