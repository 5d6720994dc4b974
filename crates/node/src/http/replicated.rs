//! Sessions with replicated durability: the reply about a turn waits until the fleet's copy has what the reply tells.

use std::time::{Duration, Instant};

use windlass_protocol::Seq;
use windlass_protocol::api::{Durability, TurnState};

use super::App;
use crate::session::SessionHandle;
use crate::session::turns::Snapshot;

/// How long a reply about a turn waits for the copy at least. The store answers in about 1 ms.
const COPY_WAIT: Duration = Duration::from_secs(2);

/// The snapshot as a reply may tell it. `began` and `wait` are the reply's own time. If the copy does not have the end of
/// the turn when that time has passed, the turn is told as running.
pub(super) async fn told(
    app: &App,
    handle: &SessionHandle,
    snapshot: Snapshot,
    (began, wait): (Instant, Duration),
) -> Snapshot {
    if handle.durability == Durability::Local {
        return snapshot;
    }
    // The node was in a fleet when it made the session.
    let Some(fleet) = app.fleet() else { return snapshot };
    let left = wait.max(COPY_WAIT).saturating_sub(began.elapsed());
    let is_copied = match (last_told(app, handle, &snapshot), fleet.watermark(&handle.id)) {
        (Some(last), Some(mut watermark)) => {
            let copied = async { watermark.wait_for(|copied| *copied >= last).await.is_ok() };
            app.serving.patience.within(left, copied).await.unwrap_or(false)
        }
        // The record is not in the journal yet, or the node has lost its lease.
        (None, _) | (_, None) => false,
    };
    if is_copied { snapshot } else { as_running(snapshot) }
}

/// The last event that a reply with this snapshot tells.
fn last_told(app: &App, handle: &SessionHandle, snapshot: &Snapshot) -> Option<Seq> {
    if snapshot.state != TurnState::Ended {
        return snapshot.accepted;
    }
    match app.serving.log.turn(&handle.id, &snapshot.turn.id) {
        Ok(record) => record.map(|record| record.ended_seq),
        Err(error) => {
            tracing::warn!(session = %handle.id, %error, "the end of a turn cannot be found in the journal");
            None
        }
    }
}

fn as_running(mut snapshot: Snapshot) -> Snapshot {
    if snapshot.state == TurnState::Ended {
        snapshot.state = TurnState::Running;
        snapshot.turn.end = None;
    }
    snapshot
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use windlass_protocol::event::Usage;
    use windlass_protocol::{Outcome, TurnId, TurnNo};

    use super::*;
    use crate::session::turns::{Turn, TurnEnd};

    #[test]
    fn a_turn_whose_end_is_not_copied_is_never_told_as_done() {
        let (refusal, exit_code, value) = (None, Some(0), None);
        let (outcome, usage) = (Outcome::Ok, Usage::default());
        let end = TurnEnd { outcome, error: None, usage, receipt: None, refusal, exit_code, value };
        let mut turn = Turn::new(TurnId::from_number(TurnNo(1)), TurnNo(1), Bytes::new(), None);
        turn.end = Some(end);
        let ended = Snapshot { turn, state: TurnState::Ended, accepted: None };
        let told = as_running(ended);
        assert_eq!(told.state, TurnState::Running);
        assert!(told.turn.end.is_none());
        let waiting = Snapshot { state: TurnState::AwaitingInput, ..told };
        assert_eq!(as_running(waiting).state, TurnState::AwaitingInput);
    }
}
