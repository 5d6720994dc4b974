//! The single timer of a session's owner. It is moved only to an earlier time. Setting a later time, as
//! most deadlines and idle timeouts do, costs nothing. So the timer may ring before anything is due; the
//! owner then checks what is due and waits again.

use std::pin::Pin;
use std::time::Instant;

use tokio::time::{Sleep, sleep_until};

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    timer: Option<Pin<Box<Sleep>>>,
}

impl Alarm {
    /// Waits until `due` at the latest; forever if nothing is due.
    pub async fn rings(&mut self, due: Option<Instant>) {
        let Some(due) = due else { return std::future::pending().await };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due.into())));
        if timer.is_elapsed() || timer.deadline() > due.into() {
            timer.as_mut().reset(due.into());
        }
        timer.as_mut().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn an_alarm_that_is_set_earlier_rings_earlier() {
        let mut alarm = Alarm::default();
        let began = Instant::now();
        let far = began + Duration::from_secs(600);
        assert!(tokio::time::timeout(Duration::ZERO, alarm.rings(Some(far))).await.is_err());
        alarm.rings(Some(began + Duration::from_millis(20))).await;
        assert!(began.elapsed() >= Duration::from_millis(20), "after {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(60), "after {:?}", began.elapsed());
    }

    #[tokio::test]
    async fn an_alarm_that_is_set_later_keeps_its_timer_until_that_rings() {
        let mut alarm = Alarm::default();
        let began = Instant::now();
        let (soon, later) = (began + Duration::from_millis(20), began + Duration::from_millis(60));
        let _ = tokio::time::timeout(Duration::ZERO, alarm.rings(Some(soon))).await;
        alarm.rings(Some(later)).await;
        let early = began.elapsed();
        assert!(early >= Duration::from_millis(20), "after {early:?}");
        alarm.rings(Some(later)).await;
        assert!(began.elapsed() >= Duration::from_millis(60), "after {:?}", began.elapsed());
    }
}
