//! A node with sessions of agents, and what the tests look at.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use windlass_client::protocol::agent::{
    ActionPhase, AgentError, AgentEvent, AgentEventKind, AgentRequest, DecidedBy, MIME,
    PermissionPolicy, ResumeToken,
};
use windlass_client::protocol::api::{CreateSession, EventItem, Session, Turn};
use windlass_client::protocol::{EventKind, Seq, SessionId, TurnId};
use windlass_client::{Client, WhichSessions};
use windlass_testkit::{
    PATIENCE, TestNode, all_events, named_turn, turn_ended, wait_for_event, within,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// The scripted agent.
const ENGINE: &str = include_str!("engine.py");

/// How often to look for something that tells nothing by itself.
const LOOK: Duration = Duration::from_millis(10);

pub struct AgentScene {
    pub node: TestNode,
    pub client: Client,
    /// The workspace of all sessions.
    pub workspace: TempDir,
}

/// How a session's agent is started.
#[derive(Debug, Clone, Default)]
pub struct SessionSettings {
    /// Options of the scripted agent.
    pub options: String,
    pub resume: Option<ResumeToken>,
    pub permissions: Option<PermissionPolicy>,
    pub permission_deadline_ms: Option<u64>,
    pub stall_ms: Option<u64>,
}

/// A line of the scripted agent's log.
#[derive(Debug)]
pub struct LogLine {
    pub word: String,
    pub session: String,
}

impl AgentScene {
    pub async fn new() -> Self {
        let node = TestNode::start(PROGRAM).await.unwrap();
        let client = node.client().await.unwrap();
        let workspace = tempfile::tempdir().unwrap();
        let scene = Self { node, client, workspace };
        scene.write("engine.py", ENGINE);
        scene.write("turns.log", "");
        scene
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.workspace.path().join(name)
    }

    pub async fn session(&self, settings: SessionSettings) -> SessionId {
        let agent = AgentRequest {
            resume: settings.resume,
            permissions: settings.permissions,
            permission_deadline_ms: settings.permission_deadline_ms,
            stall_ms: settings.stall_ms,
            ..AgentRequest::default()
        };
        let command = format!("acp:python3 engine.py {}", settings.options);
        self.create(command.trim_end(), agent, CreateSession::default()).await
    }

    pub async fn create(
        &self,
        worker: &str,
        agent: AgentRequest,
        base: CreateSession,
    ) -> SessionId {
        let create = CreateSession {
            worker: Some(worker.to_owned()),
            agent: Some(agent),
            workspace: Some(self.workspace.path().display().to_string()),
            ..base
        };
        self.client.create_session(&create).await.unwrap().session.id
    }

    pub async fn submit(&self, session: &SessionId, id: &str, prompt: &str) -> TurnId {
        let turn = named_turn(id, prompt);
        self.client.submit_turn(session, &turn).await.unwrap();
        turn.id.unwrap()
    }

    /// Waits for the end of a turn that asks for input on its way.
    pub async fn ended(&self, session: &SessionId, id: &TurnId) -> Turn {
        let found = wait_for_event(&self.client, session, Seq(0), PATIENCE, |item| {
            matches!(item.event.kind, EventKind::TurnEnded { .. })
        });
        found.await.unwrap();
        turn_ended(&self.client, session, id, PATIENCE).await.unwrap()
    }

    /// Runs a prompt to its end.
    pub async fn run(&self, session: &SessionId, prompt: &str) -> Turn {
        let number = self.client.session(session).await.unwrap().turns;
        let id = self.submit(session, &format!("run-{number}"), prompt).await;
        turn_ended(&self.client, session, &id, PATIENCE).await.unwrap()
    }

    pub async fn token(&self, session: &SessionId) -> ResumeToken {
        self.client.session(session).await.unwrap().resume.unwrap()
    }

    /// The live children of a session.
    pub async fn children(&self, session: &SessionId) -> Vec<Session> {
        let mut all = self.client.sessions(WhichSessions::Live).await.unwrap().sessions;
        all.retain(|one| one.parent.as_ref() == Some(session));
        all
    }

    /// Waits until a turn of the session has started, and returns the token that it announced.
    pub async fn started(&self, session: &SessionId) -> ResumeToken {
        let found = wait_for_event(&self.client, session, Seq(0), PATIENCE, |item| {
            item.text.as_ref().is_some_and(|text| text.contains(r#""type":"started""#))
        });
        let item = found.await.unwrap();
        let event: AgentEvent = serde_json::from_str(&item.text.unwrap()).unwrap();
        match event.kind {
            AgentEventKind::Started { resume, .. } => resume,
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the session asks for input, and returns the prompt.
    pub async fn waits_for_input(&self, session: &SessionId) -> String {
        let found = wait_for_event(&self.client, session, Seq(0), PATIENCE, |item| {
            matches!(item.event.kind, EventKind::StdinWait { .. })
        });
        match found.await.unwrap().event.kind {
            EventKind::StdinWait { prompt, .. } => prompt,
            other => panic!("{other:?}"),
        }
    }

    /// All agent events of a session.
    pub async fn events(&self, session: &SessionId) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        for item in all_events(&self.client, session).await {
            let EventKind::Display { mime, more: false, .. } = &item.event.kind else { continue };
            if mime == MIME {
                events.push(parse(&self.client, session, &item).await);
            }
        }
        events
    }

    pub async fn decisions(
        &self,
        session: &SessionId,
    ) -> Vec<(String, Option<String>, bool, DecidedBy)> {
        let decided = |event: AgentEvent| match event.kind {
            AgentEventKind::Decision { id, option, allowed, by } => Some((id, option, allowed, by)),
            _ => None,
        };
        self.events(session).await.into_iter().filter_map(decided).collect()
    }

    pub async fn until_decided(&self, session: &SessionId, count: usize) {
        let decided = async {
            while self.decisions(session).await.len() < count {
                tokio::time::sleep(LOOK).await;
            }
        };
        within(PATIENCE, decided).await;
    }

    /// Waits until something is so that tells nothing by itself, such as a line in a file.
    pub async fn until(&self, mut condition: impl FnMut(&Self) -> bool) {
        let holds = async {
            while !condition(self) {
                tokio::time::sleep(LOOK).await;
            }
        };
        within(PATIENCE, holds).await;
    }

    /// The log of the scripted agent.
    pub fn log(&self) -> Vec<LogLine> {
        let text = std::fs::read_to_string(self.path("turns.log")).unwrap();
        let line = |line: &str| {
            let mut words = line.split(' ').skip(1).map(str::to_owned);
            LogLine {
                word: words.next().unwrap_or_default(),
                session: words.next().unwrap_or_default(),
            }
        };
        text.lines().map(line).collect()
    }
}

/// The agent event of a display. A long one is fetched.
pub async fn parse(client: &Client, session: &SessionId, item: &EventItem) -> AgentEvent {
    let whole = item.text.as_ref().and_then(|text| serde_json::from_str(text).ok());
    match whole {
        Some(event) => event,
        None => {
            let display = client.display(session, item.event.seq).await.unwrap();
            serde_json::from_slice(&display.bytes).unwrap()
        }
    }
}

/// Checks that no turn of a conversation begins before the one before it has ended.
pub fn check_no_overlap(log: &[LogLine], id: &str) {
    let mut is_running = false;
    for line in log.iter().filter(|line| line.session == id) {
        match &*line.word {
            "begin" => assert!(!std::mem::replace(&mut is_running, true), "two turns: {log:?}"),
            "end" => is_running = false,
            _ => {}
        }
    }
}

/// The last event of the last turn: whether it is ok, the answer, and the error. There is one for each `started`.
pub fn completed(events: &[AgentEvent]) -> (bool, String, Option<AgentError>) {
    let is_end = |event: &&AgentEvent| matches!(event.kind, AgentEventKind::Completed { .. });
    assert!(events.last().as_ref().is_some_and(is_end), "the last event is no end: {events:?}");
    let starts = events.iter().filter(|one| matches!(one.kind, AgentEventKind::Started { .. }));
    let ends = events.iter().filter(is_end).count();
    assert!(starts.count() <= ends, "a turn has no end: {events:?}");
    match &events[events.len() - 1].kind {
        AgentEventKind::Completed { ok, answer, error, .. } => (*ok, answer.clone(), error.clone()),
        other => panic!("{other:?}"),
    }
}

/// The kinds of the events, in order.
pub fn shape(events: &[AgentEvent]) -> String {
    let name = |event: &AgentEvent| match &event.kind {
        AgentEventKind::Action { id, phase, .. } => {
            let phase = match phase {
                ActionPhase::Started => "started",
                ActionPhase::Updated => "updated",
                ActionPhase::Completed => "completed",
            };
            format!("action:{id}:{phase}")
        }
        kind => serde_json::to_value(kind).unwrap()["type"].as_str().unwrap().to_owned(),
    };
    events.iter().map(name).collect::<Vec<_>>().join(" ")
}
