//! Contract lines 100 to 109, on nodes that share sessions: real nodes, and three real servers of their store. The
//! tests kill and stop them.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod alone;
mod any_node;
mod calls;
mod http;
mod lost;
mod one_owner;
mod placing;
mod removing;
mod returning;
mod silent;
mod store_down;
mod tenants;
mod views;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::{CreateSession, SessionState, SessionsQuery};
use windlass_testkit::fleet::{JOIN_WAIT, create_patiently};
use windlass_testkit::{PATIENCE, TestFleet, TestFleetPlan, TestNode, skip, within};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// How long servers and nodes may take to start and join.
const START_WAIT: Duration = Duration::from_secs(45);

/// How long a lookup of a session's owner, or a change of it, may take to be seen.
const SEEN_WITHIN: Duration = Duration::from_secs(15);

/// A fleet of this plan. `None`, with the reason in the output, if this machine cannot run one.
async fn start(plan: TestFleetPlan) -> Option<TestFleet> {
    let started = within(START_WAIT, TestFleet::start(PROGRAM, plan)).await.unwrap();
    if started.is_none() {
        skip("there is no nats-server: put it on the PATH, or set WINDLASS_TEST_NATS");
    }
    started
}

fn id(text: &str) -> SessionId {
    SessionId::parse(text).unwrap()
}

/// The request for a session with a chosen id.
fn named(text: &str) -> CreateSession {
    CreateSession { id: Some(id(text)), ..TestNode::create() }
}

async fn create(client: &Client, name: &str) -> SessionId {
    create_patiently(client, &named(name), JOIN_WAIT).await.unwrap().id
}

/// All sessions of the fleet, in pages of two: the node and the state of each.
async fn listed(client: &Client) -> BTreeMap<String, (String, SessionState)> {
    let mut found = BTreeMap::new();
    let mut query = SessionsQuery { fleet: true, limit: Some(2), ..SessionsQuery::default() };
    loop {
        let page = within(PATIENCE, client.session_page(&query)).await.unwrap();
        assert!(page.sessions.len() <= 2, "{page:?}");
        for session in page.sessions {
            let node = session.node.map(|node| node.to_string()).unwrap_or_default();
            let before = found.insert(session.id.to_string(), (node, session.state));
            assert_eq!(before, None, "{} is listed twice", session.id);
        }
        query.cursor = page.cursor;
        if query.cursor.is_none() {
            return found;
        }
    }
}

/// Runs a command of a node's program to its end.
async fn command(node: &TestNode, args: &[&str]) -> Output {
    let mut command = node.command(args);
    let done = tokio::task::spawn_blocking(move || command.output());
    within(PATIENCE, done).await.unwrap().unwrap()
}

/// A file that the code of several sessions appends lines to.
struct SharedFile {
    directory: tempfile::TempDir,
}

impl SharedFile {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("wl-shared-").tempdir_in("/tmp").unwrap();
        Self { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("lines")
    }

    /// The request for a session that may write the file.
    fn writable_by(&self, name: &str) -> CreateSession {
        let mut create = named(name);
        let policy = create.policy.get_or_insert_default();
        policy.writable.push(self.directory.path().to_string_lossy().into_owned());
        create
    }

    /// Python code that appends the value of an expression as one line.
    fn append(&self, expression: &str) -> String {
        let path = self.path().display().to_string();
        format!("with open({path:?}, 'a') as _file: _file.write(str({expression}) + '\\n')\n")
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}
