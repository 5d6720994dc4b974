//! Time limits without a new timer for each wait.
//!
//! A new timer that is due before all others makes the runtime wake itself up, with a write to a
//! descriptor and one more poll. That would happen on every request, although almost no limit is
//! ever reached. This pool keeps timers after use and moves them to a later due time, which needs
//! neither.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Number of timers that are kept for reuse. Another one is dropped.
const IDLE_MAX: usize = 64;

/// Reuses timers; see the module documentation.
#[derive(Debug, Default)]
pub struct TimerPool {
    idle: Mutex<Vec<Pin<Box<Sleep>>>>,
}

impl TimerPool {
    /// The output of `future`, or `None` when it takes longer than `limit`.
    pub async fn within<F: Future>(&self, limit: Duration, future: F) -> Option<F::Output> {
        let mut timer = self.timer(limit);
        let mut future = pin!(future);
        let done = poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            timer.as_mut().poll(cx).map(|()| None)
        })
        .await;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(timer);
        }
        done
    }

    fn timer(&self, limit: Duration) -> Pin<Box<Sleep>> {
        let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match kept {
            Some(mut timer) => {
                timer.as_mut().reset(Instant::now() + limit);
                timer
            }
            None => Box::pin(sleep(limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kept_timer_serves_shorter_and_longer_limits() {
        let timers = TimerPool::default();
        let never = std::future::pending::<()>;
        for limit_ms in [5, 1, 20, 2] {
            let limit = Duration::from_millis(limit_ms);
            let began = Instant::now();
            assert_eq!(timers.within(limit, never()).await, None);
            assert!(began.elapsed() >= limit);
            let long = Duration::from_secs(100);
            assert_eq!(timers.within(long, async { 7 }).await, Some(7));
        }
    }
}
