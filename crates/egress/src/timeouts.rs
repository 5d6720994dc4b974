//! Time limits of the proxy.

use std::time::Duration;

/// Time limits of a client connection.
#[derive(Debug, Clone, Copy)]
pub struct ProxyTimeouts {
    /// For the request head: a SOCKS request or an HTTP head.
    pub head: Duration,
    /// From the first byte in a tunnel to the end of the TLS hello.
    pub hello: Duration,
    /// Idle timeout: no byte in either direction.
    pub idle: Duration,
}

impl ProxyTimeouts {
    pub const DEFAULT: Self = Self {
        head: Duration::from_secs(30),
        hello: Duration::from_secs(10),
        idle: Duration::from_secs(10 * 60),
    };
}
