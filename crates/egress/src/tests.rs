//! Tests of the proxy over real sockets, with a client on one side and a host on the other.

mod clients;
mod http;
mod limits;
mod literals;
mod secrets;
mod tunnels;
mod world;
