//! What `windlass top` asks the node: samples of all sessions, the output of the selected one, and the requests of the
//! user. Each runs in a task of its own, which ends when its feed is dropped.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use windlass_client::{Client, ClientError};
use windlass_protocol::agent;
use windlass_protocol::api::{
    CloseQuery, EventItem, OutputQuery, SESSION_PAGE_MAX, Session, SessionsQuery,
};
use windlass_protocol::kinds::agent::is_agent;
use windlass_protocol::{EventKind, Outcome, SessionId, Stream, TurnNo};

use super::columns::TopScope;
use super::model::{SESSIONS_MAX, TailPart, TopNode, TopSample};
use super::tail::TAIL_BYTES_MAX;
use crate::agent_view::{self, AgentView, ShownMessages, ViewPart};
use crate::counted::{OUTPUT_BYTE_DROPPED, OUTPUT_BYTES_DROPPED, counted};
use crate::node_access;
use crate::output_bytes::{self, OutputOffset};
use crate::running_turn::running_turn;

/// The time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of pages of one sample: a page may have few sessions, or none.
const PAGES_MAX: usize = 64;

/// Parts of the output that wait until they are shown. The stream of events waits while there is no space.
const PARTS_MAX: usize = 16;

/// How long the worker of a session that the user kills may take to exit.
const CLOSE_GRACE_MS: u64 = 2000;

/// Samples of all sessions, one a second.
#[derive(Debug)]
pub struct SampleFeed {
    samples: mpsc::Receiver<Result<TopSample, String>>,
    _task: JoinSet<()>,
}

impl SampleFeed {
    pub fn start(client: &Client, scope: TopScope) -> Self {
        let (sender, samples) = mpsc::channel(1);
        let mut task = JoinSet::new();
        task.spawn(sample_on(client.clone(), scope, sender));
        Self { samples, _task: task }
    }

    /// The next sample, or why the node gave none.
    pub async fn next(&mut self) -> Result<TopSample, String> {
        match self.samples.recv().await {
            Some(sample) => sample,
            // The task ends with its feed only.
            None => std::future::pending().await,
        }
    }
}

async fn sample_on(
    client: Client,
    scope: TopScope,
    sender: mpsc::Sender<Result<TopSample, String>>,
) {
    let mut ticks = interval(SAMPLE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut node = None;
    loop {
        ticks.tick().await;
        let sample = sample(&client, scope, node.take()).await;
        // After an error, the node that answers next may be another one.
        node = sample.as_ref().ok().map(|sample| sample.node.clone());
        if sender.send(sample.map_err(|error| error.to_string())).await.is_err() {
            return;
        }
    }
}

/// Asks the node once. `node` is what is known of the node.
pub async fn sample(
    client: &Client,
    scope: TopScope,
    node: Option<TopNode>,
) -> Result<TopSample, ClientError> {
    let node = match node {
        Some(node) => node,
        None => ask_for_node(client).await?,
    };
    let mut sample = TopSample { node, ..TopSample::default() };
    let mut cursor = None;
    for _ in 0..PAGES_MAX {
        let left = SESSIONS_MAX.saturating_sub(sample.sessions.len());
        let query = SessionsQuery {
            fleet: scope == TopScope::Fleet,
            limit: Some(left.min(SESSION_PAGE_MAX)),
            cursor,
            ..SessionsQuery::default()
        };
        let page = client.overview(&query).await?;
        sample.sessions.extend(page.sessions);
        cursor = page.cursor;
        if cursor.is_none() || sample.sessions.len() >= SESSIONS_MAX {
            break;
        }
    }
    sample.is_cut = cursor.is_some();
    Ok(sample)
}

async fn ask_for_node(client: &Client) -> Result<TopNode, ClientError> {
    let status = client.node_status().await?;
    Ok(TopNode {
        version: status.version,
        address: node_access::remote_url(),
        tenant: status.tenant.map(|tenant| tenant.to_string()),
    })
}

/// The output of one session.
#[derive(Debug)]
pub struct TailFeed {
    session: SessionId,
    parts: mpsc::Receiver<TailPart>,
    _task: JoinSet<()>,
}

impl TailFeed {
    pub fn start(client: &Client, session: SessionId) -> Self {
        let (sender, parts) = mpsc::channel(PARTS_MAX);
        let mut task = JoinSet::new();
        task.spawn(follow(client.clone(), session.clone(), sender));
        Self { session, parts, _task: task }
    }

    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// The next part. Never returns after the last one.
    pub async fn next(&mut self) -> TailPart {
        match self.parts.recv().await {
            Some(part) => part,
            None => std::future::pending().await,
        }
    }
}

async fn follow(client: Client, session: SessionId, sender: mpsc::Sender<TailPart>) {
    let last = match send_parts(&client, &session, &sender).await {
        Ok(()) => TailPart::Ended,
        Err(error) => TailPart::Failed(format!("{error:#}")),
    };
    // The feed may be gone.
    let _ = sender.send(last).await;
}

/// Sends the end of the output so far, then everything that follows until the session ends or the feed is gone.
async fn send_parts(
    client: &Client,
    id: &SessionId,
    sender: &mpsc::Sender<TailPart>,
) -> anyhow::Result<()> {
    let session = client.session(id).await?;
    if sender.send(TailPart::Earlier(earlier(client, &session).await?)).await.is_err() {
        return Ok(());
    }
    // A question that was asked before `session` was read is not among the events that follow.
    if let Some(turn) = running_turn(client, &session).await?
        && let Some(wait) = &turn.stdin_wait
        && sender.send(input_wanted(turn.number, &wait.prompt)).await.is_err()
    {
        return Ok(());
    }
    let mut events = client.events(id, session.seq);
    let mut reader = PartReader {
        client,
        id,
        offset: OutputOffset::at(session.output_bytes),
        agent: is_agent(&session.kind).then(|| AgentView::with(ShownMessages::Live)),
    };
    while let Some(item) = events.next().await? {
        for part in reader.parts(&item).await? {
            if sender.send(part).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The last output that the session had printed when `session` was read. Events deliver the rest.
async fn earlier(client: &Client, session: &Session) -> Result<Vec<u8>, ClientError> {
    let end = session.output_bytes;
    let from = end.saturating_sub(TAIL_BYTES_MAX as u64);
    if from >= end {
        return Ok(Vec::new());
    }
    let query = OutputQuery { from: Some(from), to: Some(end), ..OutputQuery::default() };
    let mut bytes = client.output(&session.id, &query).await?.bytes.to_vec();
    // Output that is cut may begin within a character or an escape sequence, so it begins with a whole line.
    if from > 0
        && let Some(at) = bytes.iter().position(|byte| *byte == b'\n')
    {
        bytes.drain(..=at);
    }
    Ok(bytes)
}

/// Turns events into parts.
struct PartReader<'a> {
    client: &'a Client,
    id: &'a SessionId,
    offset: OutputOffset,
    /// Present for the session of an agent.
    agent: Option<AgentView>,
}

impl PartReader<'_> {
    async fn parts(&mut self, item: &EventItem) -> anyhow::Result<Vec<TailPart>> {
        // Output advances the offset whether it is shown or not.
        let from = self.offset.advance(item);
        let turn = item.event.turn.unwrap_or_default();
        let note = match &item.event.kind {
            EventKind::Output { stream, .. } => return self.output(item, *stream, from).await,
            EventKind::Display { mime, more: false, .. } if mime == agent::MIME => {
                return self.agent_parts(item).await;
            }
            EventKind::Display { mime, more: false, .. } => format!("shows {mime}"),
            EventKind::StdinWait { prompt, .. } => return Ok(vec![input_wanted(turn, prompt)]),
            EventKind::InterruptAsked { .. } => format!("turn {turn} is being stopped"),
            EventKind::TurnEnded { outcome, .. } => {
                format!("turn {turn} ended: {}", outcome_name(*outcome))
            }
            EventKind::OutputDropped { bytes, .. } => {
                counted(*bytes, OUTPUT_BYTE_DROPPED, OUTPUT_BYTES_DROPPED)
            }
            EventKind::SessionEnded { message, .. } => {
                let message = message.as_deref().unwrap_or("the session ended");
                message.to_owned()
            }
            _ => return Ok(Vec::new()),
        };
        Ok(vec![TailPart::Note(note)])
    }

    async fn output(
        &self,
        item: &EventItem,
        stream: Stream,
        from: u64,
    ) -> anyhow::Result<Vec<TailPart>> {
        // The result of an agent's turn repeats what the agent's events have shown.
        if stream == Stream::Result && self.agent.as_ref().is_some_and(|view| !view.wants_answer())
        {
            return Ok(Vec::new());
        }
        let is_within = item.text.is_some() || item.base64.is_some();
        let most = TAIL_BYTES_MAX as u64;
        let bytes = if is_within || item.bytes <= most {
            output_bytes::fetch(self.client, self.id, item, from).await?
        } else {
            let end = from + item.bytes;
            let query =
                OutputQuery { from: Some(end - most), to: Some(end), ..OutputQuery::default() };
            self.client.output(self.id, &query).await?.bytes.to_vec()
        };
        Ok(vec![TailPart::Output(bytes)])
    }

    async fn agent_parts(&mut self, item: &EventItem) -> anyhow::Result<Vec<TailPart>> {
        let Some(view) = &mut self.agent else { return Ok(Vec::new()) };
        let Some(event) = agent_view::read(self.client, self.id, item).await? else {
            return Ok(Vec::new());
        };
        let parts = view.show(&event).into_iter().map(|part| match part {
            ViewPart::Text(text) => TailPart::Output(text.into_bytes()),
            ViewPart::EndLine => TailPart::EndLine,
            ViewPart::Line(_, line) => TailPart::Note(line),
        });
        Ok(parts.collect())
    }
}

fn input_wanted(turn: TurnNo, prompt: &str) -> TailPart {
    TailPart::Note(format!("turn {turn} waits for input: {prompt}"))
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Error => "error",
        Outcome::Interrupted => "interrupted",
        Outcome::TimedOut => "timed out",
        Outcome::Lost => "lost",
    }
}

/// Interrupts the running turn, and returns what to tell the user.
pub async fn interrupt(client: Client, session: SessionId) -> String {
    match client.interrupt(&session).await {
        Ok(turn) => format!("turn {} of {session} is being interrupted", turn.id),
        Err(error) => format!("{session} was not interrupted: {error}"),
    }
}

/// Closes the session, and returns what to tell the user.
pub async fn close(client: Client, session: SessionId) -> String {
    let close = CloseQuery { grace_ms: Some(CLOSE_GRACE_MS) };
    match client.close_session(&session, close).await {
        Ok(_) => format!("session {session} is closed"),
        Err(error) => format!("session {session} was not closed: {error}"),
    }
}
