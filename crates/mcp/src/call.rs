//! One call of a client: which client calls, from which directory, what the client supports, and
//! how the call ends early.

use std::path::PathBuf;
use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{
    ClientCapabilities, ElicitationCapability, ProgressNotificationParam, ProtocolVersion,
};
use rmcp::service::{Peer, RequestContext};
use serde_json::Value;
use tokio::sync::watch;
use windlass_client::Client;
use windlass_protocol::agent::MCP_RUN_KEY;
use windlass_protocol::policy::PolicyRequest;
use windlass_protocol::{ClientName, SessionId, TurnId};

use crate::codex;
use crate::door::{Door, DoorScope, Transport};
use crate::fault::Fault;
use crate::names::SessionScope;
use crate::output::{OutputStart, SeenOutput};

/// The name of a client that does not tell its name.
const UNNAMED_CLIENT: &str = "mcp";

/// Clients that show the model structured content instead of the text, and some of them instead of
/// images too. A model reads text better than JSON with escapes, so these clients get no structured
/// content.
const TEXT_ONLY_CLIENTS: [&str; 2] = [CODEX, "claude-code"];

/// The name that the SDK gives to a client that sent its name in another request, to a server
/// without sessions.
const RMCP_PLACEHOLDER: &str = "rmcp";

/// The metadata key that Codex sends with each call, and the name that Codex gives itself.
const CODEX_TURN: &str = "x-codex-turn-metadata";
const CODEX: &str = "codex-mcp-client";

/// Whether a client gets text and images, without structured content.
pub(crate) fn text_only(door: &Door, context: &RequestContext<RoleServer>) -> bool {
    door.agent.is_some() || TEXT_ONLY_CLIENTS.contains(&name_of(context).as_str())
}

fn name_of(context: &RequestContext<RoleServer>) -> String {
    match context.client_info().map(|info| info.name) {
        Some(name) if name != RMCP_PLACEHOLDER => name,
        _ if context.meta.contains_key(CODEX_TURN) => CODEX.to_owned(),
        _ => UNNAMED_CLIENT.to_owned(),
    }
}

/// A request, with what its client told about itself.
#[derive(Debug)]
pub(crate) struct ClientCall {
    pub scope: SessionScope,
    pub workspace: Option<PathBuf>,
    pub policy: Option<PolicyRequest>,
    /// Whether the code of a new Python session may install packages.
    pub allow_packages: bool,
    pub elicitation: ElicitationSupport,
    /// The client accepts a task handle instead of an answer.
    pub takes_tasks: bool,
    /// The id of the turn that the call runs, if the client sends the same call again after an outage.
    pub turn: Option<TurnId>,
    /// How far the replies to this client went. `None`: the door cannot tell this client from others.
    seen: Option<Arc<SeenOutput>>,
    context: RequestContext<RoleServer>,
    gone: watch::Receiver<bool>,
    /// What cancelling the call does to its turn.
    on_cancel: OnCancel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnCancel {
    StopTurn,
    /// The connection was lost, which says nothing about the turn.
    KeepTurn,
}

/// How a client can ask its user for input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElicitationSupport {
    /// The call's answer asks for input, and the client repeats the call with it (2026-07-28).
    ByAnswer,
    /// The door sends a request to the client during the call.
    ByRequest,
    Never,
}

impl ClientCall {
    /// If the client names a sandbox that is not understood, the call fails: it must not run in
    /// another sandbox.
    pub async fn new(door: &Door, context: &RequestContext<RoleServer>) -> Result<Self, Fault> {
        if let Some(agent) = &door.agent {
            return Ok(Self::of_agent(door, &agent.call.session, context));
        }
        let sandbox = codex::sandbox_of(&context.meta.0)?;
        // A sandbox that the client names may be stricter than the user's options, and stays as it is.
        let allow_packages = door.shared.allow_packages && sandbox.is_none();
        let DoorScope { workspace, tenant } = door.scope().await?;
        let (workspace, policy) = match sandbox {
            Some(sandbox) => {
                let sandbox = sandbox.within(door.shared.policy.as_ref());
                // The directories of this machine are not for clients whose token has a tenant.
                let directory = sandbox.workspace.filter(|_| tenant.is_none());
                (directory.or_else(|| workspace.clone()), Some(sandbox.policy))
            }
            None => (workspace.clone(), door.shared.policy.clone()),
        };
        let name = name_of(context);
        let stateless = is_stateless(context.protocol_version().as_ref());
        let abilities = context.client_capabilities().unwrap_or_default();
        let on_cancel = match (door.shared.transport, stateless) {
            // There a client cancels a call by closing the answer.
            (Transport::Stdio | Transport::Agent, _) | (Transport::Http, true) => {
                OnCancel::StopTurn
            }
            (Transport::Http, false) => OnCancel::KeepTurn,
        };
        Ok(Self {
            scope: SessionScope::of(&name, workspace.as_deref(), policy.as_ref())
                .with_tenant(tenant.as_ref())
                .with_permissions(door.shared.permissions)
                .with_packages(allow_packages),
            workspace,
            policy,
            allow_packages,
            elicitation: elicitation_support(&abilities, stateless, door.shared.transport),
            takes_tasks: abilities.supports_tasks(),
            turn: None,
            seen: door.shared.seen.clone(),
            context: context.clone(),
            gone: door.shared.gone.subscribe(),
            on_cancel,
        })
    }

    /// A request of a session's agent. Its sessions are children of that session, so their policy and workspace are not
    /// chosen here. The agent's user is asked for permissions, not for input of the code.
    fn of_agent(door: &Door, parent: &SessionId, context: &RequestContext<RoleServer>) -> Self {
        let key = context.meta.get(MCP_RUN_KEY).and_then(Value::as_str);
        Self {
            scope: SessionScope::of_children(parent),
            workspace: None,
            policy: None,
            allow_packages: false,
            elicitation: ElicitationSupport::Never,
            takes_tasks: false,
            turn: key.and_then(|key| TurnId::chosen(key).ok()),
            seen: None,
            context: context.clone(),
            gone: door.shared.gone.subscribe(),
            on_cancel: OnCancel::StopTurn,
        }
    }

    /// A client of the node that tells the name of this call's client.
    pub fn named(&self, client: &Client) -> Client {
        match ClientName::of_program(&name_of(&self.context)) {
            Some(name) => client.named(&name),
            None => client.clone(),
        }
    }

    pub fn peer(&self) -> &Peer<RoleServer> {
        &self.context.peer
    }

    /// Whether the client wants progress notifications.
    pub fn wants_progress(&self) -> bool {
        self.context.meta.get_progress_token().is_some()
    }

    /// Best effort: a client that misses a notification loses nothing.
    pub async fn tell_progress(&self, progress: f64, message: String) {
        let Some(token) = self.context.meta.get_progress_token() else { return };
        let progress = ProgressNotificationParam::new(token, progress).with_message(message);
        let _ = self.peer().notify_progress(progress).await;
    }

    /// The first byte of a turn's output that the reply shows.
    pub fn output_from(&self, start: OutputStart, session: &SessionId, turn: &TurnId) -> u64 {
        match (start, &self.seen) {
            (OutputStart::At(from), _) => from,
            (OutputStart::Unseen, Some(seen)) => seen.next(session, turn),
            (OutputStart::Begin, _) | (OutputStart::Unseen, None) => 0,
        }
    }

    /// Remembers that the reply shows a turn's output up to `next`. A cancelled call has no reply.
    pub fn record_seen(&self, session: &SessionId, turn: &TurnId, next: u64) {
        if let Some(seen) = &self.seen
            && !self.context.ct.is_cancelled()
        {
            seen.record(session, turn, next);
        }
    }

    /// Returns when the client no longer waits for an answer, with the reason.
    pub async fn ended_early(&self) -> Fault {
        let mut gone = self.gone.clone();
        tokio::select! {
            biased;
            Ok(_) = gone.wait_for(|gone| *gone) => Fault::Gone,
            () = self.context.ct.cancelled() => match self.on_cancel {
                OnCancel::StopTurn => Fault::Cancelled,
                OnCancel::KeepTurn => Fault::Gone,
            },
        }
    }
}

fn is_stateless(version: Option<&ProtocolVersion>) -> bool {
    version.is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

fn elicitation_support(
    abilities: &ClientCapabilities,
    stateless: bool,
    transport: Transport,
) -> ElicitationSupport {
    let has_forms = match &abilities.elicitation {
        // Older revisions have forms only and name no kinds.
        Some(ElicitationCapability { form: None, url: None, .. }) => true,
        Some(kinds) => kinds.form.is_some(),
        None => false,
    };
    match (has_forms, stateless, transport) {
        (false, ..) => ElicitationSupport::Never,
        (true, true, _) => ElicitationSupport::ByAnswer,
        (true, false, Transport::Stdio) => ElicitationSupport::ByRequest,
        (true, false, Transport::Agent) => ElicitationSupport::Never,
        // The answer would arrive in a separate request, and this server keeps no sessions.
        (true, false, Transport::Http) => ElicitationSupport::Never,
    }
}
