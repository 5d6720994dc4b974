//! MCP servers as tools, with real servers, a real node and a real Python: one process per server for all
//! sessions, its tools called from code, its exit and its restart.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod command;
mod life;
mod policy;
mod remote;

use serde_json::{Value, json};
use tempfile::TempDir;
use windlass_client::Client;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::api::{CreateSession, Server, ServerList, ServersQuery};
use windlass_client::protocol::policy::{PolicyRequest, ToolRule};
use windlass_testkit::{PATIENCE, TestNode, TestNodeBuilder, run_ok, within};

/// A node with its own servers.
struct Place {
    node: TestNode,
    client: Client,
    // The last field: the node reads its file.
    _config: TempDir,
}

impl Place {
    /// A node whose file lists these servers.
    async fn start(servers: Value) -> Self {
        let file = json!({"mcpServers": servers}).to_string();
        Self::with_file(&file, |builder| builder).await
    }

    async fn with_file(file: &str, more: impl FnOnce(TestNodeBuilder) -> TestNodeBuilder) -> Self {
        let config = tempfile::tempdir().unwrap();
        let path = config.path().join("mcp.json");
        std::fs::write(&path, file).unwrap();
        let builder = TestNode::builder(env!("CARGO_BIN_EXE_windlass"));
        let node = more(builder).arg("--mcp-config").arg(path).start().await.unwrap();
        let client = node.client().await.unwrap();
        Self { node, client, _config: config }
    }

    /// A session that may call the tools that the rules name.
    async fn session(&self, rules: &[&str]) -> SessionId {
        self.client.create_session(&wanted(rules)).await.unwrap().session.id
    }

    /// Waits until the list of servers satisfies `wanted`.
    async fn servers_once(&self, wanted: impl Fn(&ServerList) -> bool) -> ServerList {
        let looking = async {
            let mut query = ServersQuery::default();
            loop {
                let list = self.client.mcp_servers(query).await.unwrap();
                if wanted(&list) {
                    return list;
                }
                query = ServersQuery { after: Some(list.change), wait_ms: 60_000 };
            }
        };
        within(PATIENCE, looking).await
    }

    /// Waits until the only server satisfies `wanted`.
    async fn server_once(&self, wanted: impl Fn(&Server) -> bool) -> Server {
        self.servers_once(|list| wanted(&list.servers[0])).await.servers.remove(0)
    }

    /// Waits until a session sees a tool: a server runs shortly before the node knows its tools.
    async fn sees(&self, session: &SessionId, tool: &str) {
        let looking = async {
            let names = |found: &windlass_client::protocol::api::SessionTools| {
                found.tools.iter().any(|one| one.name == tool)
            };
            while !names(&self.client.session_tools(session, None).await.unwrap()) {}
        };
        within(PATIENCE, looking).await;
    }

    async fn run(&self, session: &SessionId, code: &str) -> String {
        run_ok(&self.client, session, code).await
    }
}

fn wanted(rules: &[&str]) -> CreateSession {
    let mut create = TestNode::create();
    let policy = create.policy.take().unwrap_or_default();
    let tools = rules.iter().map(|rule| ToolRule::parse(*rule).unwrap()).collect();
    CreateSession { policy: Some(PolicyRequest { tools, ..policy }), ..create }
}

/// An entry with additional fields.
fn with(mut entry: Value, more: Value) -> Value {
    let fields = more.as_object().unwrap().clone();
    entry.as_object_mut().unwrap().extend(fields);
    entry
}
