//! One method per endpoint of the HTTP door, typed by `windlass_protocol::api`. Does not know how a
//! request travels.

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use windlass_protocol::api::{
    CloseQuery, ConsoleLogin, CreateSession, Created, EgressLog, Events, EventsQuery, ForkSession,
    ForkedSession, NodeStatus, OutputQuery, SearchQuery, SearchResult, SecretInfo, SecretList,
    ServerList, ServersQuery, Session, SessionList, SessionOverview, SessionSecretRules,
    SessionState, SessionTools, SessionsQuery, SetSecretRules, StopNode, StopSessions, SubmitTurn,
    Turn, TurnInput, TurnQuery, TurnState, UsageList, UsageQuery, WorkerList,
};
use windlass_protocol::disk::{DiskUse, PruneRequest, Pruned};
use windlass_protocol::environments::{EnvironmentList, EnvironmentsQuery};
use windlass_protocol::fleet_view::{CordonState, FleetNodeList, FleetStatus, SetCordon};
use windlass_protocol::packages::{CreatePackageEnvironment, PackageEnvironment};
use windlass_protocol::policy::SecretName;
use windlass_protocol::{NodeName, Seq, SessionId, TenantName, TurnId};

use crate::call::{HttpCall, Repeat};
use crate::client::Client;
use crate::error::ClientError;
use crate::events::EventStream;
use crate::query::RequestPath;

/// How long one request of [`Client::run_turn`] waits when the caller names no other time.
const POLL_WAIT_MS: u64 = 30_000;

/// How long a fork may take: a large workspace is copied first.
const FORK_WAIT_MS: u64 = 120_000;

/// How long the node may take to find an interpreter.
const INTERPRETER_WAIT_MS: u64 = 30_000;

/// How long the node may take to measure its disk use, and to prune.
const DISK_WAIT_MS: u64 = 120_000;
const PRUNE_WAIT_MS: u64 = 900_000;

/// Random bytes in a generated turn id: 2^96 values, so two ids do not collide.
const TURN_ID_BYTES: usize = 12;

/// A range of raw output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputBytes {
    pub bytes: Bytes,
    /// Where the range begins.
    pub from: u64,
    /// Where to continue reading. Bytes may be left out in between, so this is not always `from`
    /// plus the number of bytes.
    pub next: u64,
    /// Bytes of output in all.
    pub total: u64,
    /// Bytes that the node did not keep.
    pub dropped: u64,
}

/// A display's bytes and their MIME type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisplayBytes {
    pub mime: String,
    pub bytes: Bytes,
}

/// A new turn id. A turn with an id can be submitted again safely.
pub fn fresh_turn_id() -> TurnId {
    let text = format!("t{}", crate::random::hex::<TURN_ID_BYTES>());
    TurnId::chosen(text).expect("a letter and hexadecimal digits")
}

/// Sessions.
impl Client {
    /// Follows the events after `after` until the session ends.
    pub fn events(&self, session: &SessionId, after: Seq) -> EventStream {
        EventStream::new(self, session, after)
    }

    /// Never sent twice: the node would create two sessions. With a first turn, the reply waits as
    /// that turn requests.
    pub async fn create_session(&self, create: &CreateSession) -> Result<Created, ClientError> {
        let turn_ms = create.turn.as_ref().map_or(0, |turn| turn.wait_ms);
        let copy_ms = create.copy_workspace.map_or(0, |_| FORK_WAIT_MS);
        let wait_ms = turn_ms.saturating_add(copy_ms);
        let path = RequestPath::new(&["sessions"]).done();
        self.json(HttpCall::post_json(path, Repeat::IfNotSent, create).waiting(wait_ms)).await
    }

    pub async fn sessions(&self, which: WhichSessions) -> Result<SessionList, ClientError> {
        let all = matches!(which, WhichSessions::EndedToo).then_some("true");
        self.json(HttpCall::get(RequestPath::new(&["sessions"]).text("all", all).done())).await
    }

    pub async fn session(&self, session: &SessionId) -> Result<Session, ClientError> {
        self.json(HttpCall::get(RequestPath::new(&["sessions", session.as_str()]).done())).await
    }

    pub async fn close_session(
        &self,
        session: &SessionId,
        close: CloseQuery,
    ) -> Result<Session, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str()])
            .number("grace_ms", close.grace_ms)
            .done();
        self.json(HttpCall::delete(path).waiting(close.grace_ms.unwrap_or(0))).await
    }

    /// The hosts that the session's code connected to, or tried to.
    pub async fn egress(&self, session: &SessionId) -> Result<EgressLog, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str(), "egress"]).done();
        self.json(HttpCall::get(path)).await
    }

    /// Where the session's secrets may go.
    pub async fn secret_rules(
        &self,
        session: &SessionId,
    ) -> Result<SessionSecretRules, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str(), "secrets"]).done();
        self.json(HttpCall::get(path)).await
    }

    /// Replaces the rules that say where the session's secrets may go.
    pub async fn set_secret_rules(
        &self,
        session: &SessionId,
        rules: &SetSecretRules,
    ) -> Result<SessionSecretRules, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str(), "secrets"]).done();
        self.json(HttpCall::put_json(path, rules)).await
    }

    /// The secrets of the node, without their values.
    pub async fn secrets(&self) -> Result<SecretList, ClientError> {
        self.json(HttpCall::get(RequestPath::new(&["secrets"]).done())).await
    }

    pub async fn set_secret(
        &self,
        name: &SecretName,
        value: String,
    ) -> Result<SecretInfo, ClientError> {
        let path = RequestPath::new(&["secrets", name.as_str()]).done();
        self.json(HttpCall::put(path, value.into())).await
    }

    pub async fn remove_secret(&self, name: &SecretName) -> Result<SecretList, ClientError> {
        let path = RequestPath::new(&["secrets", name.as_str()]).done();
        self.json(HttpCall::delete(path)).await
    }

    /// The tools that the session's code may call: those that match the words, or all.
    pub async fn session_tools(
        &self,
        session: &SessionId,
        words: Option<&str>,
    ) -> Result<SessionTools, ClientError> {
        let path =
            RequestPath::new(&["sessions", session.as_str(), "tools"]).text("words", words).done();
        self.json(HttpCall::get(path)).await
    }

    /// The MCP servers that the node runs.
    pub async fn mcp_servers(&self, query: ServersQuery) -> Result<ServerList, ClientError> {
        let path = RequestPath::new(&["mcp", "servers"])
            .number("after", query.after)
            .number("wait_ms", (query.wait_ms > 0).then_some(query.wait_ms));
        self.json(HttpCall::get(path.done()).waiting(query.wait_ms)).await
    }

    /// The interpreters for which the node keeps workers ready.
    pub async fn environments(
        &self,
        query: EnvironmentsQuery,
    ) -> Result<EnvironmentList, ClientError> {
        let wait_ms = (query.wait_ms > 0).then_some(query.wait_ms);
        let path = RequestPath::new(&["environments"]).number("wait_ms", wait_ms);
        self.json(HttpCall::get(path.done()).waiting(query.wait_ms)).await
    }

    /// Finds a package environment, or has the node build it. Safe to send again: the same request finds the same
    /// environment.
    pub async fn create_package_environment(
        &self,
        create: &CreatePackageEnvironment,
    ) -> Result<PackageEnvironment, ClientError> {
        let path = RequestPath::new(&["environments"]).done();
        let call = HttpCall::post_json(path, Repeat::Freely, create);
        self.json(call.waiting(create.wait_ms.saturating_add(INTERPRETER_WAIT_MS))).await
    }

    /// A package environment, with its lock file.
    pub async fn package_environment(&self, name: &str) -> Result<PackageEnvironment, ClientError> {
        self.json(HttpCall::get(RequestPath::new(&["environments", name]).done())).await
    }

    /// Removes a package environment that no session uses.
    pub async fn remove_package_environment(
        &self,
        name: &str,
    ) -> Result<PackageEnvironment, ClientError> {
        let path = RequestPath::new(&["environments", name]).done();
        self.json(HttpCall::delete(path).waiting(PRUNE_WAIT_MS)).await
    }

    /// The kinds of worker that sessions can request.
    pub async fn workers(&self) -> Result<WorkerList, ClientError> {
        self.json(HttpCall::get(RequestPath::new(&["workers"]).done())).await
    }

    /// Makes a twin of an idle session. Never sent twice: the node would make two twins.
    pub async fn fork_session(
        &self,
        session: &SessionId,
        fork: &ForkSession,
    ) -> Result<ForkedSession, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str(), "fork"]).done();
        self.json(HttpCall::post_json(path, Repeat::IfNotSent, fork).waiting(FORK_WAIT_MS)).await
    }

    /// Starts a fresh worker in the session.
    pub async fn reset_session(&self, session: &SessionId) -> Result<Session, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str(), "reset"]).done();
        self.json(HttpCall::post(path, Repeat::IfNotSent)).await
    }
}

/// Which sessions to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhichSessions {
    Live,
    EndedToo,
}

/// Turns.
impl Client {
    /// Sent again after a failed connection only if the client chose the turn's id
    /// ([`fresh_turn_id`] makes one).
    pub async fn submit_turn(
        &self,
        session: &SessionId,
        submit: &SubmitTurn,
    ) -> Result<Turn, ClientError> {
        let repeat = if submit.id.is_some() { Repeat::Freely } else { Repeat::IfNotSent };
        let path = RequestPath::new(&["sessions", session.as_str(), "turns"]).done();
        self.json(HttpCall::post_json(path, repeat, submit).waiting(submit.wait_ms)).await
    }

    pub async fn turn(
        &self,
        session: &SessionId,
        turn: &TurnId,
        query: TurnQuery,
    ) -> Result<Turn, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str(), "turns", turn.as_str()])
            .number("wait_ms", (query.wait_ms > 0).then_some(query.wait_ms))
            .number("output_bytes_max", query.output_bytes_max)
            .number("stdout_bytes_max", query.stdout_bytes_max)
            .number("stderr_bytes_max", query.stderr_bytes_max);
        self.json(HttpCall::get(path.done()).waiting(query.wait_ms)).await
    }

    /// Submits a turn and waits until it has ended or asks for input, however long that takes.
    /// `wait_ms` bounds each request, not the whole. A turn without an id gets one, so that a
    /// failed connection does no harm.
    pub async fn run_turn(
        &self,
        session: &SessionId,
        mut submit: SubmitTurn,
    ) -> Result<Turn, ClientError> {
        if submit.wait_ms == 0 {
            submit.wait_ms = POLL_WAIT_MS;
        }
        submit.id.get_or_insert_with(fresh_turn_id);
        let turn = self.submit_turn(session, &submit).await?;
        let SubmitTurn { wait_ms, output_bytes_max, stdout_bytes_max, stderr_bytes_max, .. } =
            submit;
        let query = TurnQuery { wait_ms, output_bytes_max, stdout_bytes_max, stderr_bytes_max };
        self.settled(turn, query).await
    }

    /// Sends a turn the input that it waits for, then waits as [`Client::run_turn`] does.
    pub async fn answer_turn(
        &self,
        session: &SessionId,
        turn: &TurnId,
        input: &TurnInput,
    ) -> Result<Turn, ClientError> {
        self.send_input(session, turn, input).await?;
        let query = TurnQuery { wait_ms: POLL_WAIT_MS, ..TurnQuery::default() };
        let turn = self.turn(session, turn, query).await?;
        self.settled(turn, query).await
    }

    async fn settled(&self, mut turn: Turn, query: TurnQuery) -> Result<Turn, ClientError> {
        while !matches!(turn.state, TurnState::Ended | TurnState::AwaitingInput) {
            turn = self.turn(&turn.session, &turn.id, query).await?;
        }
        Ok(turn)
    }

    pub async fn interrupt_turn(
        &self,
        session: &SessionId,
        turn: &TurnId,
    ) -> Result<Turn, ClientError> {
        let path =
            RequestPath::new(&["sessions", session.as_str(), "turns", turn.as_str(), "interrupt"])
                .done();
        self.json(HttpCall::post(path, Repeat::IfNotSent)).await
    }

    /// Interrupts the running turn.
    pub async fn interrupt(&self, session: &SessionId) -> Result<Turn, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str(), "interrupt"]).done();
        self.json(HttpCall::post(path, Repeat::IfNotSent)).await
    }

    pub async fn send_input(
        &self,
        session: &SessionId,
        turn: &TurnId,
        input: &TurnInput,
    ) -> Result<Turn, ClientError> {
        let path =
            RequestPath::new(&["sessions", session.as_str(), "turns", turn.as_str(), "input"])
                .done();
        self.json(HttpCall::post_json(path, Repeat::IfNotSent, input)).await
    }
}

/// Events, output and displays.
impl Client {
    /// One page of events; [`Client::events`] follows them.
    pub async fn events_page(
        &self,
        session: &SessionId,
        query: EventsQuery,
    ) -> Result<Events, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str(), "events"])
            .number("after", Some(query.after))
            .number("wait_ms", (query.wait_ms > 0).then_some(query.wait_ms))
            .number("limit", query.limit);
        self.json(HttpCall::get(path.done()).waiting(query.wait_ms)).await
    }

    pub async fn output(
        &self,
        session: &SessionId,
        query: &OutputQuery,
    ) -> Result<OutputBytes, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str(), "output"])
            .text("turn", query.turn.as_deref())
            .number("from", query.from)
            .number("to", query.to)
            .number("tail", query.tail);
        let answer = self.call(&HttpCall::get(path.done())).await?;
        let from = number(&answer.headers, "windlass-output-from")?;
        let after = from + answer.body.len() as u64;
        Ok(OutputBytes {
            from,
            next: number(&answer.headers, "windlass-output-next").unwrap_or(after),
            total: number(&answer.headers, "windlass-output-total")?,
            dropped: number(&answer.headers, "windlass-output-dropped")?,
            bytes: answer.body,
        })
    }

    pub async fn search_output(
        &self,
        session: &SessionId,
        query: &SearchQuery,
    ) -> Result<SearchResult, ClientError> {
        let path = RequestPath::new(&["sessions", session.as_str(), "output", "search"])
            .text("query", Some(&query.query))
            .text("turn", query.turn.as_deref())
            .number("limit", query.limit);
        self.json(HttpCall::get(path.done())).await
    }

    /// The display that event `seq` completed.
    pub async fn display(
        &self,
        session: &SessionId,
        seq: Seq,
    ) -> Result<DisplayBytes, ClientError> {
        let number = seq.to_string();
        let path = RequestPath::new(&["sessions", session.as_str(), "displays", &number]).done();
        let answer = self.call(&HttpCall::get(path)).await?;
        let mime = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Ok(DisplayBytes {
            mime: mime.unwrap_or("application/octet-stream").to_owned(),
            bytes: answer.body,
        })
    }
}

/// The node.
impl Client {
    /// Succeeds when the node answers at all.
    pub async fn health(&self) -> Result<(), ClientError> {
        self.call(&HttpCall::get(RequestPath::new(&["health"]).done())).await.map(drop)
    }

    pub async fn node_status(&self) -> Result<NodeStatus, ClientError> {
        self.json(HttpCall::get(RequestPath::new(&["version"]).done())).await
    }

    /// The metrics in Prometheus' text format.
    pub async fn metrics(&self) -> Result<String, ClientError> {
        let answer = self.call(&HttpCall::get(RequestPath::new(&["metrics"]).done())).await?;
        Ok(String::from_utf8_lossy(&answer.body).into_owned())
    }

    /// The OpenAPI document, as the node serves it.
    pub async fn openapi(&self) -> Result<serde_json::Value, ClientError> {
        self.json(HttpCall::get(RequestPath::new(&["openapi.json"]).done())).await
    }

    /// How much disk space the node uses, and for what.
    pub async fn disk_use(&self) -> Result<DiskUse, ClientError> {
        let path = RequestPath::new(&["node", "disk"]).done();
        self.json(HttpCall::get(path).waiting(DISK_WAIT_MS)).await
    }

    /// What each tenant uses on the node.
    pub async fn usage(&self, query: &UsageQuery) -> Result<UsageList, ClientError> {
        let tenant = query.tenant.as_ref().map(TenantName::as_str);
        self.json(HttpCall::get(RequestPath::new(&["usage"]).text("tenant", tenant).done())).await
    }

    /// Makes an address with which a person logs in to the node's web console, once.
    pub async fn console_login(&self) -> Result<ConsoleLogin, ClientError> {
        let path = RequestPath::new(&["console", "logins"]).done();
        // Another address does no harm, so the request may be sent again.
        self.json(HttpCall::post(path, Repeat::Freely)).await
    }

    /// Removes ended sessions and data that no session needs. With a dry run it only reports them.
    pub async fn prune(&self, wanted: &PruneRequest) -> Result<Pruned, ClientError> {
        let path = RequestPath::new(&["node", "prune"]).done();
        self.json(HttpCall::post_json(path, Repeat::IfNotSent, wanted).waiting(PRUNE_WAIT_MS)).await
    }

    /// Asks the node to stop. It may still be ending when this returns.
    pub async fn stop_node(&self, sessions: StopSessions) -> Result<(), ClientError> {
        let path = RequestPath::new(&["node", "stop"]).done();
        let call = HttpCall::post_json(path, Repeat::IfNotSent, &StopNode { sessions });
        self.call(&call).await.map(drop)
    }
}

fn number(headers: &HeaderMap, name: &'static str) -> Result<u64, ClientError> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.and_then(|text| text.parse().ok()).ok_or_else(|| ClientError::BadAnswer {
        request: "a range of output".to_owned(),
        cause: format!("the header {name} is missing or not a number"),
    })
}

/// The fleet: its nodes, its sessions in pages, and the cordon of a node. Any node of the fleet answers.
impl Client {
    /// The nodes of the fleet, with their load.
    pub async fn fleet_nodes(&self) -> Result<FleetNodeList, ClientError> {
        self.json(HttpCall::get(RequestPath::new(&["fleet", "nodes"]).done())).await
    }

    /// How the node stands in its fleet.
    pub async fn fleet_status(&self) -> Result<FleetStatus, ClientError> {
        self.json(HttpCall::get(RequestPath::new(&["fleet", "status"]).done())).await
    }

    /// Cordons a node, or lets it take sessions again.
    pub async fn set_cordon(
        &self,
        node: &NodeName,
        set: SetCordon,
    ) -> Result<CordonState, ClientError> {
        let path = RequestPath::new(&["fleet", "nodes", node.as_str(), "cordon"]).done();
        self.json(HttpCall::post_json(path, Repeat::Freely, &set)).await
    }

    /// A page of sessions. The `cursor` of the reply is that of the next page.
    pub async fn session_page(&self, query: &SessionsQuery) -> Result<SessionList, ClientError> {
        self.json(HttpCall::get(list_path("sessions", query))).await
    }

    /// Sessions as short rows, with what their processes use: a page, or all without `limit` and `cursor` of one node.
    pub async fn overview(&self, query: &SessionsQuery) -> Result<SessionOverview, ClientError> {
        self.json(HttpCall::get(list_path("overview", query))).await
    }
}

/// The path of a list of sessions, with its query.
fn list_path(list: &str, query: &SessionsQuery) -> String {
    let SessionsQuery { all, fleet, state, node, tenant, limit, cursor } = query;
    RequestPath::new(&[list])
        .text("all", all.then_some("true"))
        .text("fleet", fleet.then_some("true"))
        .text("state", state.map(SessionState::as_str))
        .text("node", node.as_ref().map(NodeName::as_str))
        .text("tenant", tenant.as_ref().map(TenantName::as_str))
        .number("limit", *limit)
        .text("cursor", cursor.as_deref())
        .done()
}
