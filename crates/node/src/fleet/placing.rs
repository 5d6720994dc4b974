//! Places new sessions: asks a few nodes for their load and passes the request on to the best of them. A session that
//! names something of this machine stays here, as does one of a client that reads the list of one node. The choice itself is `lifecycle::fleet::Placement`. A creation that was
//! passed on is never placed again.

use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use futures_util::future::join_all;
use windlass_client::TokenRights;
use windlass_fleet::membership::PeerReport;
use windlass_lifecycle::fleet::placement::ASKED_NODES;
use windlass_lifecycle::fleet::{
    AskedNode, PeerStatus, Placement, PlacementRefusal, PlacementWish,
};
use windlass_protocol::api::CreateSession;
use windlass_protocol::fleet::{PLACED_HERE, PLACEMENT_HEADER};
use windlass_protocol::fleet_view::{NodeLoad, PlacementRule, check_labels};
use windlass_protocol::host::PARENT_HEADER;
use windlass_protocol::policy::PolicyRequest;
use windlass_protocol::{ErrorCode, NodeName, kinds};

use super::asking::{refusal_in, whole};
use super::forward::{ClientConnection, OutgoingBody, Passed, SendError, prepare};
use super::{FleetNode, SessionRoute, load, standing_file, view};
use crate::context::Context;
use crate::failure::Failure;
use crate::tenancy;

/// How long other nodes have to tell their load.
const LOAD_WAIT: Duration = Duration::from_millis(100);

/// Maximum number of other nodes that are asked for a session that wants labels.
const LABELLED_NODES: usize = 32;

/// How long the cordon and the labels of another node are remembered.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// Maximum number of nodes that are remembered. With more, the memory begins anew.
const KNOWN_MAX: usize = 4_096;

/// Maximum size of an answer that may say that a node has no room.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of nodes that the refusal of a session names.
const NAMED_MAX: usize = 8;

/// What other nodes told last, so that cordoned nodes and those with other labels are not asked again and again.
#[derive(Debug, Default)]
pub(super) struct KnownNodes(HashMap<NodeName, KnownNode>);

#[derive(Debug)]
struct KnownNode {
    at: Instant,
    cordoned: bool,
    labels: BTreeMap<String, String>,
}

impl KnownNodes {
    fn note(&mut self, load: &NodeLoad) {
        if self.0.len() >= KNOWN_MAX {
            self.0.clear();
        }
        let (cordoned, labels) = (load.cordoned, load.labels.clone());
        self.0.insert(load.node.clone(), KnownNode { at: Instant::now(), cordoned, labels });
    }

    /// Whether it makes sense to ask the node.
    fn prospect(&self, node: &NodeName, labels: &BTreeMap<String, String>) -> PlacementProspect {
        let known = self.0.get(node).filter(|known| known.at.elapsed() < KNOWN_FOR);
        let Some(known) = known else { return PlacementProspect::MayTake };
        if !labels.iter().all(|(name, value)| known.labels.get(name) == Some(value)) {
            return PlacementProspect::OtherLabels;
        }
        if known.cordoned { PlacementProspect::Cordoned } else { PlacementProspect::MayTake }
    }
}

/// What is known of a node before it is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlacementProspect {
    MayTake,
    /// It has the labels, and takes no session now.
    Cordoned,
    OtherLabels,
}

/// A request to create a session, with its whole body.
#[derive(Debug)]
pub(crate) struct CreationRequest {
    pub parts: Parts,
    pub body: Bytes,
}

/// Another node has no room for the session, and did nothing. It says why.
struct NoRoom(Failure);

/// Has the session made on this node or on another one. `rights` is what the client's token allows.
pub(crate) async fn place(
    context: &Context,
    fleet: &FleetNode,
    rights: &TokenRights,
    creation: CreationRequest,
) -> Passed {
    // The handler says what is wrong with a body that cannot be read.
    let Ok(mut wanted) = serde_json::from_slice::<CreateSession>(creation.json()) else {
        return creation.here();
    };
    // The node that makes the session does the same with the request's body.
    let quotas = &context.config.tenants;
    if let Err(failure) = tenancy::assign(rights.tenant.as_ref(), quotas, &mut wanted) {
        return Passed::Refused(failure);
    }
    let rule = wanted.placement.clone().unwrap_or_default();
    if let Err(error) = check_labels(&rule.labels) {
        return refused(ErrorCode::BadRequest, error.to_string());
    }
    let headers = &creation.parts.headers;
    // The sessions of a client that is limited to the children of a session are here.
    if headers.contains_key(PARENT_HEADER) {
        return creation.here();
    }
    if let Some(parent) = &wanted.parent
        && !context.sessions.knows(parent)
        && let SessionRoute::There(node) = fleet.route(parent).await
    {
        return creation.for_one(fleet, rights, &node).await;
    }
    if wanted.parent.is_some() {
        // A child ends with its parent. A cordon lets the parent go on, so also its children.
        return creation.here();
    }
    let wants_here = headers.get(PLACEMENT_HEADER).is_some_and(|value| value == PLACED_HERE);
    match stay(context, fleet, &wanted, &rule, wants_here) {
        StayDecision::Here => return creation.here(),
        StayDecision::Refused(failure) => return Passed::Refused(failure),
        StayDecision::MayLeave => {}
    }
    let Candidates { nodes, unasked } = match candidates(fleet, &rule) {
        Ok(candidates) => candidates,
        Err(failure) => return Passed::Refused(failure),
    };
    let asked = ask_loads(context, fleet, nodes, rule.node.is_none()).await;
    let kind = wanted.worker.as_deref().unwrap_or(kinds::DEFAULT.name);
    let wish = PlacementWish { kind, labels: &rule.labels };
    let mut placement = Placement::of(wish, fleet.name(), asked);
    while let Some(node) = placement.try_best() {
        if node == *fleet.name() {
            return creation.here();
        }
        match creation.send(fleet, rights, &node).await {
            Ok(passed) => return passed,
            Err(NoRoom(failure)) => placement.refused(node, failure.message),
        }
    }
    Passed::Refused(no_room(placement.refusals(), unasked))
}

/// Whether a session must be made on this node.
enum StayDecision {
    Here,
    Refused(Failure),
    /// It may be made on another node too.
    MayLeave,
}

fn stay(
    context: &Context,
    fleet: &FleetNode,
    wanted: &CreateSession,
    rule: &PlacementRule,
    wants_here: bool,
) -> StayDecision {
    if rule.node.as_ref().is_some_and(|node| node != fleet.name()) {
        return StayDecision::MayLeave;
    }
    let bound = bound_by(context, wanted)
        .or_else(|| wants_here.then_some("the list that the client reads"));
    if bound.is_none() && rule.node.is_none() {
        return StayDecision::MayLeave;
    }
    let labels = &fleet.config.labels;
    if !rule.labels.iter().all(|(name, value)| labels.get(name) == Some(value)) {
        let why = bound.map(|what| format!(", and {what} belongs to this node"));
        let message = format!(
            "node {} does not have the labels of `placement`{}; name a node instead, or leave the labels out",
            fleet.name(),
            why.unwrap_or_default()
        );
        return StayDecision::Refused(Failure::new(ErrorCode::BadRequest, message));
    }
    let refusal = match bound {
        Some(_) => load::refuse_local(fleet),
        None => load::refuse_placed(context, fleet),
    };
    refusal.map_or(StayDecision::Here, StayDecision::Refused)
}

/// What of the request is of this machine: another node may have something else by that name, or nothing.
fn bound_by(context: &Context, wanted: &CreateSession) -> Option<&'static str> {
    let owner_has_host =
        wanted.owner.as_ref().is_some_and(|owner| context.tools.serves_owner(owner));
    owner_has_host.then_some("the tool host of `owner`").or_else(|| names_something_local(wanted))
}

fn names_something_local(wanted: &CreateSession) -> Option<&'static str> {
    let policy = wanted.policy.as_ref().and_then(policy_names);
    let kind = wanted.worker.as_deref().unwrap_or(kinds::DEFAULT.name);
    // Jupyter kernels, agents with their accounts, and the kinds of the configuration file.
    let is_local_kind = kinds::find(kind).is_none_or(|kind| kind.has_variants);
    let all = [
        (wanted.workspace.is_some(), "`workspace`"),
        (wanted.copy_workspace.is_some(), "`copy_workspace`"),
        (wanted.interpreter.is_some(), "`interpreter`"),
        (wanted.environment.is_some(), "`environment`"),
        (wanted.agent.is_some(), "`agent`"),
        (is_local_kind, "`worker`"),
    ];
    policy.or_else(|| all.into_iter().find_map(|(is_named, what)| is_named.then_some(what)))
}

fn policy_names(policy: &PolicyRequest) -> Option<&'static str> {
    let all = [
        (policy.readable.as_ref().is_some_and(|paths| !paths.is_empty()), "`policy.readable`"),
        (!policy.writable.is_empty(), "`policy.writable`"),
        (!policy.environment.is_empty(), "`policy.environment`"),
        (!policy.tools.is_empty(), "`policy.tools`"),
        (!policy.secrets.is_empty(), "`policy.secrets`"),
    ];
    all.into_iter().find_map(|(is_named, what)| is_named.then_some(what))
}

/// The other nodes to ask.
struct Candidates {
    nodes: Vec<NodeName>,
    unasked: UnaskedNodes,
}

/// Numbers of other nodes that have the labels, as far as that is known, and are not asked.
#[derive(Debug, Clone, Copy, Default)]
struct UnaskedNodes {
    /// They might take the session, and are too many.
    too_many: usize,
    cordoned: usize,
}

/// The other nodes to ask: the one that the request names, or some at random.
fn candidates(fleet: &FleetNode, rule: &PlacementRule) -> Result<Candidates, Failure> {
    let others = view::others(fleet);
    if let Some(node) = &rule.node {
        if fleet.removed().has(node) {
            let message =
                format!("node {node}, which `placement` names, was removed from the fleet");
            return Err(Failure::new(ErrorCode::BadRequest, message));
        }
        let known = others.iter().find(|other| other.node == *node);
        return match known.map(|other| other.status) {
            Some(PeerStatus::Alive) => {
                Ok(Candidates { nodes: vec![node.clone()], unasked: UnaskedNodes::default() })
            }
            Some(PeerStatus::Unreachable | PeerStatus::Lost(_)) => {
                let message = format!("node {node}, which `placement` names, cannot be reached");
                Err(Failure::new(ErrorCode::NodeUnreachable, message))
            }
            None if fleet.joined().is_none() => Err(fleet.not_joined()),
            None => {
                let message =
                    format!("the fleet has no node {node}; `windlass fleet nodes` lists its nodes");
                Err(Failure::new(ErrorCode::BadRequest, message))
            }
        };
    }
    let known = fleet.condition.known.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut nodes, mut cordoned) = (Vec::new(), 0);
    for PeerReport { node, status, .. } in others {
        // A removed node keeps its lease, and gets no requests.
        if status != PeerStatus::Alive || fleet.removed().has(&node) {
            continue;
        }
        match known.prospect(&node, &rule.labels) {
            PlacementProspect::MayTake => nodes.push(node),
            PlacementProspect::Cordoned => cordoned += 1,
            PlacementProspect::OtherLabels => {}
        }
    }
    let most = if rule.labels.is_empty() { ASKED_NODES } else { LABELLED_NODES };
    let too_many = nodes.len().saturating_sub(most);
    choose_some(&mut nodes, most, standing_file::random());
    Ok(Candidates { nodes, unasked: UnaskedNodes { too_many, cordoned } })
}

/// Keeps some of the nodes, at random.
fn choose_some(nodes: &mut Vec<NodeName>, most: usize, seed: u64) {
    let mut state = seed | 1;
    for at in 0..most.min(nodes.len()) {
        // xorshift: the numbers need no more quality than an even choice.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let left = (nodes.len() - at) as u64;
        let other = at + usize::try_from(state % left).unwrap_or(0);
        nodes.swap(at, other);
    }
    nodes.truncate(most);
}

/// The loads of these nodes, and of this one if it is a candidate.
async fn ask_loads(
    context: &Context,
    fleet: &FleetNode,
    nodes: Vec<NodeName>,
    with_own: bool,
) -> Vec<AskedNode> {
    let mut asked = join_all(nodes.into_iter().map(|node| ask_load(fleet, node))).await;
    {
        let mut known = fleet.condition.known.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().filter_map(|one| one.load.as_ref()).for_each(|load| known.note(load));
    }
    if with_own {
        let load = Some(load::measure(context, fleet));
        asked.push(AskedNode { node: fleet.name().clone(), load });
    }
    asked
}

async fn ask_load(fleet: &FleetNode, node: NodeName) -> AskedNode {
    let load = load::of_peer(fleet, &node, LOAD_WAIT).await;
    let load =
        load.inspect_err(|failure| tracing::debug!(%node, why = %failure.message, "no load"));
    AskedNode { node, load: load.ok() }
}

impl CreationRequest {
    /// An empty body is an empty request, as for the handler.
    fn json(&self) -> &[u8] {
        if self.body.is_empty() { b"{}" } else { &self.body }
    }

    /// This node serves the request.
    fn here(self) -> Passed {
        Passed::Here(Request::from_parts(self.parts, Body::from(self.body)))
    }

    /// Passes the request on to the only node that can serve it.
    async fn for_one(self, fleet: &FleetNode, rights: &TokenRights, node: &NodeName) -> Passed {
        match self.send(fleet, rights, node).await {
            Ok(passed) => passed,
            Err(NoRoom(failure)) => Passed::Refused(failure),
        }
    }

    async fn send(
        &self,
        fleet: &FleetNode,
        rights: &TokenRights,
        node: &NodeName,
    ) -> Result<Passed, NoRoom> {
        let mut request = Request::new(());
        *request.method_mut() = self.parts.method.clone();
        *request.uri_mut() = self.parts.uri.clone();
        *request.headers_mut() = self.parts.headers.clone();
        prepare(request.headers_mut(), rights, false);
        let (parts, ()) = request.into_parts();
        let body = OutgoingBody::Whole(self.body.clone());
        let (response, sender) = match fleet.exchange(node, None, &parts, body).await {
            Ok(answered) => answered,
            Err(SendError::Unreachable(failure)) => return Err(NoRoom(failure)),
            Err(SendError::Cut) => return Ok(Passed::Cut),
        };
        let response = fleet.returned(node.clone(), response, sender, ClientConnection::default());
        let may_be_full = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
        if !may_be_full.contains(&response.status()) {
            return Ok(Passed::Answered(response));
        }
        let (parts, body) = response.into_parts();
        let Ok(bytes) = axum::body::to_bytes(body, REFUSAL_BYTES_MAX).await else {
            return Ok(Passed::Cut);
        };
        match refusal_in(&bytes) {
            Some(failure) if is_of_node(failure.code) => Err(NoRoom(failure)),
            _ => Ok(Passed::Answered(whole(parts, bytes))),
        }
    }
}

/// Whether another node may take what this one has refused. The store is the same for all nodes.
fn is_of_node(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Overloaded | ErrorCode::Cordoned | ErrorCode::ShuttingDown | ErrorCode::Fenced
    )
}

/// No node takes the session: what each of them said. If some were not asked, another try asks them: what nodes say about
/// labels and cordons is remembered for some seconds. Only labels that no node has are the request's mistake.
fn no_room(refusals: &[(NodeName, PlacementRefusal)], unasked: UnaskedNodes) -> Failure {
    let UnaskedNodes { too_many, cordoned } = unasked;
    let all = |is: fn(&PlacementRefusal) -> bool| refusals.iter().all(|(_, why)| is(why));
    let code = if refusals.is_empty() {
        ErrorCode::Overloaded
    } else if all(|why| matches!(why, PlacementRefusal::Cordoned)) {
        ErrorCode::Cordoned
    } else if all(|why| matches!(why, PlacementRefusal::NoAnswer)) {
        ErrorCode::NodeUnreachable
    } else if too_many + cordoned == 0 && all(|why| matches!(why, PlacementRefusal::OtherLabels)) {
        ErrorCode::BadRequest
    } else if all(|why| matches!(why, PlacementRefusal::NotServing(_) | PlacementRefusal::NoAnswer))
    {
        ErrorCode::FleetUnavailable
    } else {
        ErrorCode::Overloaded
    };
    let named = refusals.iter().take(NAMED_MAX);
    let mut named: Vec<String> = named.map(|(node, why)| format!("{node} {why}")).collect();
    if refusals.len() > NAMED_MAX {
        named.push(format!("and {} more", refusals.len() - NAMED_MAX));
    }
    let mut message =
        format!("no node takes the session; of those that were asked: {}", named.join("; "));
    if cordoned > 0 {
        message += &format!("; {cordoned} other nodes that might take it are cordoned");
    }
    if too_many > 0 {
        message += &format!("; {too_many} other nodes were not asked, so try again");
    }
    Failure::of_node(code, message)
}

fn refused(code: ErrorCode, message: String) -> Passed {
    Passed::Refused(Failure::new(code, message))
}

#[cfg(test)]
mod tests;
