//! Ten agents at once, with faults: the node is killed again and again while they work.
//! `WINDLASS_AGENT_LOAD_S` sets how long.

use std::time::{Duration, Instant};

use windlass_client::protocol::agent::AgentEventKind;
use windlass_client::protocol::{EventKind, Outcome, SessionId, TurnId};
use windlass_testkit::{PATIENCE, all_events, processes, turn_ended};

use crate::scene::{AgentScene, SessionSettings, parse};

const AGENTS: usize = 10;
const CHUNKS: usize = 200;

/// How long the agents work if the environment sets no time.
const SECONDS_DEFAULT: u64 = 5;

/// What an agent does in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Burst,
    Ask,
    Die,
    /// Leaves processes behind, and is interrupted.
    Spawn,
}

impl Work {
    fn of(agent: usize, round: usize) -> Self {
        match (agent + round) % AGENTS {
            0 => Self::Die,
            1 => Self::Spawn,
            2 | 3 => Self::Ask,
            _ => Self::Burst,
        }
    }

    fn prompt(self, mark: &str) -> String {
        match self {
            Self::Burst => format!("burst {CHUNKS}"),
            Self::Ask => "ask rm".to_owned(),
            Self::Die => "exit 3".to_owned(),
            Self::Spawn => format!("spawn {mark}"),
        }
    }

    fn outcome(self) -> Outcome {
        match self {
            Self::Burst | Self::Ask => Outcome::Ok,
            Self::Die => Outcome::Error,
            Self::Spawn => Outcome::Interrupted,
        }
    }
}

#[tokio::test]
async fn contract_96_ten_agents_under_faults_lose_and_leave_nothing() {
    let seconds = std::env::var("WINDLASS_AGENT_LOAD_S").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS_DEFAULT));
    let mut scene = AgentScene::new().await;
    let mut sessions = Vec::new();
    for _ in 0..AGENTS {
        sessions.push(scene.session(SessionSettings::default()).await);
    }
    let mark = format!("load-{}", std::process::id());
    let (mut rounds, mut kills, mut checked) = (0, 0, 0);
    while rounds == 0 || Instant::now() < until {
        let mut turns: Vec<(SessionId, TurnId, Work)> = Vec::new();
        for (agent, session) in sessions.iter().enumerate() {
            let work = Work::of(agent, rounds);
            let id = scene.submit(session, &format!("r{rounds}"), &work.prompt(&mark)).await;
            turns.push((session.clone(), id, work));
        }
        for _ in 0..=rounds % 3 {
            scene.node.restart().await.unwrap();
            kills += 1;
        }
        scene.client = scene.node.client().await.unwrap();
        for (session, id, work) in &turns {
            if *work == Work::Spawn {
                scene.until(|_| left(&mark) >= 1).await;
                scene.client.interrupt_turn(session, id).await.unwrap();
            }
            let ended = turn_ended(&scene.client, session, id, 2 * PATIENCE).await.unwrap();
            assert_eq!(ended.outcome, Some(work.outcome()), "{work:?}: {ended:?}");
            checked += check_events(&scene, session, ended.number.0, *work).await;
        }
        assert_eq!(left(&format!("left-behind-{mark}")), 0, "round {rounds}");
        rounds += 1;
    }
    println!(
        "{AGENTS} agents, {rounds} rounds, {kills} kills of the node, {checked} events checked"
    );
    assert!(kills > 0 && checked > AGENTS * CHUNKS / 2);
}

fn left(mark: &str) -> usize {
    let all = processes::all().into_iter();
    all.filter(|found| processes::mentions(found.pid, mark.as_bytes())).count()
}

/// Checks that a turn's events are all there, once and in order. Returns their number.
async fn check_events(scene: &AgentScene, session: &SessionId, turn: u64, work: Work) -> usize {
    let items = all_events(&scene.client, session).await;
    let mut events = Vec::new();
    for item in items.iter().filter(|item| item.event.turn.is_some_and(|of| of.0 == turn)) {
        if let EventKind::Display { more: false, .. } = item.event.kind {
            events.push(parse(&scene.client, session, item).await);
        }
    }
    let count = |is: fn(&AgentEventKind) -> bool| events.iter().filter(|one| is(&one.kind)).count();
    assert_eq!(count(|kind| matches!(kind, AgentEventKind::Started { .. })), 1, "{work:?}");
    assert_eq!(count(|kind| matches!(kind, AgentEventKind::Completed { .. })), 1, "{work:?}");
    if work == Work::Burst {
        let chunks: Vec<String> = events
            .iter()
            .filter_map(|event| match &event.kind {
                AgentEventKind::Message { text, chunk: true, .. } => Some(text.clone()),
                _ => None,
            })
            .collect();
        let expected: Vec<String> = (0..CHUNKS).map(|number| format!("{number};")).collect();
        assert!(chunks == expected, "{} of {CHUNKS} chunks, or in another order", chunks.len());
    }
    events.len()
}
