//! The time limit of a request's head, and of a TLS handshake before it. Most heads arrive whole and need no timer.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::connection_slots::ConnectionProgress;

/// Maximum time from the first to the last byte of a request's head. A TLS handshake and the first head after it have
/// this time together.
const HEAD_WAIT: Duration = Duration::from_secs(10);

/// The time limit of a head that does not arrive in one piece.
#[derive(Default)]
pub(super) struct HeadWait {
    timer: Option<Pin<Box<Sleep>>>,
}

impl HeadWait {
    /// Ready when the connection has waited for the rest of a head for too long.
    pub fn poll_over(&mut self, progress: &ConnectionProgress, cx: &mut Context<'_>) -> Poll<()> {
        if !progress.awaits_head() {
            self.timer = None;
            return Poll::Pending;
        }
        let timer =
            self.timer.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + HEAD_WAIT)));
        timer.as_mut().poll(cx)
    }
}
