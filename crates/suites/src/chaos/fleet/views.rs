//! What every node says about every session after the faults, and the files of effects.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::Ended;
use windlass_client::protocol::event::EndReason;

use super::player::{EFFECTS, FleetDoor, SESSION_LOST, asked, read_events};
use super::record::{NodeView, SessionHistory, ViewState};

/// How long nodes may take to answer, and to agree, after the faults.
const AGREE_WAIT: Duration = Duration::from_secs(90);

/// The pause between two looks at a session.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The shortest and the longest time limit of one request. Requests near the end of the run get the shorter one.
const ANSWER_WAIT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The code of a view whose state changed while it was read.
const CHANGED: &str = "changed";

/// What a receipt says before the number of the last copied event.
const COPIED: &str = "events after event ";

/// Completes the histories.
pub async fn complete(doors: &[FleetDoor], histories: &mut [SessionHistory]) {
    let until = Instant::now() + AGREE_WAIT;
    for history in histories {
        if !history.replaced {
            history.views = agreed(doors, &history.session, until).await;
        }
        history.effects = effects(&history.workspace);
    }
}

/// The views of all nodes, as soon as all answer and agree. Without that, the views when the time is over.
async fn agreed(doors: &[FleetDoor], session: &str, until: Instant) -> Vec<NodeView> {
    let Ok(session) = SessionId::parse(session) else { return Vec::new() };
    loop {
        let mut views = Vec::new();
        for door in doors {
            views.push(view(door, &session, until).await);
        }
        let live = views.iter().filter(|view| view.state == ViewState::Live).count();
        let all_answer = !views.iter().any(|view| matches!(view.state, ViewState::Refused(_)));
        if (all_answer && (live == 0 || live == views.len())) || Instant::now() > until {
            return views;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What a node says. The state is asked for before and after the events: when the owner of a lost session comes back, the
/// others pass requests on to it again.
async fn view(door: &FleetDoor, session: &SessionId, until: Instant) -> NodeView {
    let node = door.node.clone();
    let before = state(door, session, until).await;
    if matches!(before, ViewState::Refused(_)) {
        return NodeView { node, state: before, events: BTreeMap::new() };
    }
    let (events, refused) = match read_events(&door.client, session, 0).await {
        Ok(events) => (events, None),
        Err(SESSION_LOST) => (BTreeMap::new(), None),
        Err(code) => (BTreeMap::new(), Some(code)),
    };
    let after = state(door, session, until).await;
    let state = match refused {
        Some(code) => ViewState::Refused(code.to_owned()),
        None if before != after => ViewState::Refused(CHANGED.to_owned()),
        None => after,
    };
    NodeView { node, state, events }
}

async fn state(door: &FleetDoor, session: &SessionId, until: Instant) -> ViewState {
    let left = until.saturating_duration_since(Instant::now());
    let wait = left.clamp(ANSWER_WAIT.0, ANSWER_WAIT.1);
    match asked(wait, door.client.session(session)).await {
        Ok(found) => match &found.ended {
            None => ViewState::Live,
            Some(ended) if ended.reason == EndReason::Lost => {
                ViewState::Lost { copied: last_copied(ended) }
            }
            Some(_) => ViewState::Ended,
        },
        Err(SESSION_LOST) => ViewState::Lost { copied: None },
        Err(code) => ViewState::Refused(code.to_owned()),
    }
}

/// The last event that was copied, as the receipt of a lost session names it.
fn last_copied(ended: &Ended) -> Option<u64> {
    let lost = &ended.receipt.as_ref()?.lost;
    lost.iter().find_map(|lost| lost.strip_prefix(COPIED)?.parse().ok())
}

fn effects(workspace: &str) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(Path::new(workspace).join(EFFECTS)).ok()?;
    Some(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use windlass_client::protocol::event::Receipt;

    use super::*;

    #[test]
    fn a_receipt_names_the_last_copied_event() {
        let ended = |lost: &[&str]| {
            let lost = lost.iter().map(|entry| (*entry).to_owned()).collect();
            let receipt = Some(Receipt { kept: Vec::new(), lost });
            Ended { reason: EndReason::Lost, message: None, receipt }
        };
        assert_eq!(last_copied(&ended(&["variables", "events after event 12"])), Some(12));
        assert_eq!(last_copied(&ended(&["all events"])), None);
    }
}
