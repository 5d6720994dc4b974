//! Which tool host offers which tools to which sessions. Owns the table of attached hosts and their
//! declarations. Sends nothing itself.
//!
//! Several hosts can offer a tool of the same name. The narrowest scope wins: a host of the session, then a host
//! of its parent, then a host of the session's owner, then a shared host that the policy allows, then a host for all
//! sessions. Within one scope, the host that attached last wins. The sessions of a tenant find only the first three.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use windlass_protocol::host::{Declaration, ToolOffer, is_tool_name};
use windlass_protocol::kinds::LanguageTerms;
use windlass_protocol::limits::{
    HOST_DECLARATION_BYTES_MAX, HOST_TOOLS_MAX, TOOL_NAME_BYTES_MAX, TOOL_SCHEMA_BYTES_MAX,
};
use windlass_protocol::policy::ToolRule;
use windlass_protocol::{ErrorCode, Owner, SessionId};

use super::host::{AttachedHost, DetachReason};
use crate::refused::HostRefused;

/// Maximum number of attached hosts. One more is refused as `overloaded`.
const HOSTS_MAX: usize = 4096;

/// Maximum size of all declarations together, as JSON text. A declaration that would exceed it is refused
/// as `overloaded`.
const DECLARED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Identifies a host while this node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(u64);

/// Which sessions may call a host's tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostScope {
    Session(SessionId),
    /// All present and future sessions of this owner.
    Owner(Owner),
    /// All sessions whose policy allows the tool.
    Shared,
    /// All sessions.
    Everyone,
}

/// The session that calls a tool.
#[derive(Debug, Clone)]
pub struct Caller {
    pub session: SessionId,
    /// The session whose child it is. A child may call the tools that are offered to its parent.
    pub parent: Option<SessionId>,
    pub owner: Option<Owner>,
    /// Which shared tools the session may call.
    pub rules: Vec<ToolRule>,
    /// How the session's language writes types and values.
    pub words: &'static LanguageTerms,
}

/// Where a call goes.
#[derive(Debug, Clone)]
pub struct Route {
    pub host: Arc<AttachedHost>,
    /// The deadline of a call for which the code sets none.
    pub deadline_ms: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Hub {
    table: Mutex<HostTable>,
    /// Notified when the last host is gone.
    emptied: Notify,
}

/// A declaration that passed all checks.
#[derive(Debug)]
pub struct CheckedDeclaration {
    tools: Tools,
    /// The declaration's size as JSON text.
    bytes: usize,
}

type Tools = HashMap<String, Arc<ToolOffer>>;

#[derive(Debug, Default)]
struct HostTable {
    last: u64,
    declared_bytes: usize,
    hosts: HashMap<HostId, HostEntry>,
    /// Each list is in the order in which the hosts attached.
    by_session: HashMap<SessionId, Vec<HostId>>,
    by_owner: HashMap<Owner, Vec<HostId>>,
    shared: Vec<HostId>,
    everyone: Vec<HostId>,
}

#[derive(Debug)]
struct HostEntry {
    host: Arc<AttachedHost>,
    scope: HostScope,
    tools: Tools,
    declared_bytes: usize,
}

impl Hub {
    pub fn attach(&self, scope: HostScope) -> Result<Arc<AttachedHost>, HostRefused> {
        let mut table = self.lock();
        if table.hosts.len() >= HOSTS_MAX {
            let message = format!("the node already has {HOSTS_MAX} tool hosts");
            return Err(HostRefused::new(ErrorCode::Overloaded, message));
        }
        table.last += 1;
        let id = HostId(table.last);
        let host = Arc::new(AttachedHost::new(id));
        table.list_of(&scope).push(id);
        let attached =
            HostEntry { host: host.clone(), scope, tools: HashMap::new(), declared_bytes: 0 };
        table.hosts.insert(id, attached);
        Ok(host)
    }

    #[cfg(test)]
    pub fn declare(
        &self,
        host: &AttachedHost,
        declaration: Declaration,
    ) -> Result<usize, HostRefused> {
        self.install(host, CheckedDeclaration::new(declaration)?)
    }

    /// Replaces the tools that the host offers. Returns their number. On an error the former tools stay.
    pub fn install(
        &self,
        host: &AttachedHost,
        prepared: CheckedDeclaration,
    ) -> Result<usize, HostRefused> {
        let CheckedDeclaration { mut tools, bytes } = prepared;
        let count = tools.len();
        let mut table = self.lock();
        let declared_bytes = table.declared_bytes;
        // A host that is gone offers nothing. It needs no error.
        let Some(attached) = table.hosts.get_mut(&host.id()) else { return Ok(0) };
        let total_bytes = declared_bytes - attached.declared_bytes + bytes;
        if total_bytes > DECLARED_BYTES_MAX {
            let message = format!(
                "the declarations of all tool hosts together exceed {DECLARED_BYTES_MAX} bytes"
            );
            return Err(HostRefused::new(ErrorCode::Overloaded, message));
        }
        attached.declared_bytes = bytes;
        std::mem::swap(&mut attached.tools, &mut tools);
        table.declared_bytes = total_bytes;
        Ok(count)
    }

    pub fn detach(&self, host: HostId) {
        let mut table = self.lock();
        let Some(attached) = table.hosts.remove(&host) else { return };
        table.declared_bytes -= attached.declared_bytes;
        let list = table.list_of(&attached.scope);
        list.retain(|other| *other != host);
        if list.is_empty() {
            table.drop_list(&attached.scope);
        }
        if table.hosts.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    fn is_empty(&self) -> bool {
        self.lock().hosts.is_empty()
    }

    /// Whether no host is attached for a session or an owner. The node starts the hosts for all sessions
    /// itself, so they do not keep an idle node running.
    pub fn is_unused(&self) -> bool {
        let table = self.lock();
        table.by_session.is_empty() && table.by_owner.is_empty()
    }

    /// Whether a host is attached for all sessions of this owner.
    pub fn serves_owner(&self, owner: &Owner) -> bool {
        self.lock().by_owner.contains_key(owner)
    }

    /// Detaches all hosts, and waits until they are gone.
    pub async fn detach_all(&self) {
        let mut emptied = pin!(self.emptied.notified());
        emptied.as_mut().enable();
        for attached in self.lock().hosts.values() {
            attached.host.end(DetachReason::NodeStops);
        }
        if !self.is_empty() {
            emptied.await;
        }
    }

    /// The host that gets a call of this name. The module's documentation gives the order of hosts.
    pub fn route(&self, caller: &Caller, name: &str) -> Option<Route> {
        let table = self.lock();
        table.reachable(caller).find_map(|attached| {
            let offer = attached.tools.get(name)?;
            let open = attached.is_open_to(caller, name);
            open.then(|| Route { host: attached.host.clone(), deadline_ms: offer.deadline_ms })
        })
    }

    /// The declaration of the tool that a name means for this caller.
    pub fn offer(&self, caller: &Caller, name: &str) -> Option<Arc<ToolOffer>> {
        let table = self.lock();
        table.reachable(caller).find_map(|attached| {
            let offer = attached.tools.get(name)?;
            attached.is_open_to(caller, name).then(|| offer.clone())
        })
    }

    /// All tools that the caller may call: each name once, sorted.
    pub fn offers(&self, caller: &Caller) -> Vec<Arc<ToolOffer>> {
        let table = self.lock();
        let mut seen = BTreeMap::new();
        for attached in table.reachable(caller) {
            for (name, offer) in &attached.tools {
                if attached.is_open_to(caller, name) {
                    seen.entry(name.as_str()).or_insert(offer);
                }
            }
        }
        seen.into_values().cloned().collect()
    }

    /// Forgets a session that has ended: no host notifies it any more, and its own hosts are detached.
    pub fn forget(&self, session: &SessionId) {
        let table = self.lock();
        for attached in table.hosts.values() {
            attached.host.forget_caller(session);
            if matches!(&attached.scope, HostScope::Session(only) if only == session) {
                attached.host.end(DetachReason::SessionOver);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HostTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostTable {
    /// The hosts that may offer tools to the caller, in the order of precedence.
    fn reachable<'t>(&'t self, caller: &'t Caller) -> impl Iterator<Item = &'t HostEntry> {
        let own = self.by_session.get(&caller.session);
        let parents = caller.parent.as_ref().and_then(|parent| self.by_session.get(parent));
        let owners = caller.owner.as_ref().and_then(|owner| self.by_owner.get(owner));
        // What the owner of the node offers to its sessions is not for those of a tenant.
        let is_of_tenant = caller.session.tenant().is_some();
        let shared = (!caller.rules.is_empty() && !is_of_tenant).then_some(&self.shared);
        let everyone = (!is_of_tenant).then_some(&self.everyone);
        [own, parents, owners, shared, everyone]
            .into_iter()
            .flatten()
            .flat_map(|list| list.iter().rev())
            .filter_map(|id| self.hosts.get(id))
    }

    fn list_of(&mut self, scope: &HostScope) -> &mut Vec<HostId> {
        match scope {
            HostScope::Session(session) => self.by_session.entry(session.clone()).or_default(),
            HostScope::Owner(owner) => self.by_owner.entry(owner.clone()).or_default(),
            HostScope::Shared => &mut self.shared,
            HostScope::Everyone => &mut self.everyone,
        }
    }

    fn drop_list(&mut self, scope: &HostScope) {
        match scope {
            HostScope::Session(session) => drop(self.by_session.remove(session)),
            HostScope::Owner(owner) => drop(self.by_owner.remove(owner)),
            HostScope::Shared | HostScope::Everyone => {}
        }
    }
}

impl HostEntry {
    fn is_open_to(&self, caller: &Caller, tool: &str) -> bool {
        self.scope != HostScope::Shared || caller.rules.iter().any(|rule| rule.allows(tool))
    }
}

impl CheckedDeclaration {
    pub fn new(declaration: Declaration) -> Result<Self, HostRefused> {
        let bytes = check(&declaration)?;
        let named = |offer: ToolOffer| (offer.name.clone(), Arc::new(offer));
        Ok(Self { tools: declaration.tools.into_iter().map(named).collect(), bytes })
    }

    /// The declaration's size as JSON text.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The names of the tools.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }
}

/// Checks a declaration. Returns its size as JSON text.
fn check(declaration: &Declaration) -> Result<usize, HostRefused> {
    let bad = |message: String| Err(HostRefused::new(ErrorCode::BadRequest, message));
    let large = |message: String| Err(HostRefused::new(ErrorCode::MessageTooLarge, message));
    if declaration.tools.len() > HOST_TOOLS_MAX {
        let count = declaration.tools.len();
        return large(format!("{count} tools are over the limit of {HOST_TOOLS_MAX}"));
    }
    let mut names = HashSet::new();
    let mut bytes = 0;
    for offer in &declaration.tools {
        let name = &offer.name;
        if !is_tool_name(name) {
            // The name may be as long as the whole declaration.
            let start: String = name.chars().take(TOOL_NAME_BYTES_MAX).collect();
            return bad(format!(
                "{start:?} is not a tool name: use an identifier, or two joined by a dot"
            ));
        }
        if !names.insert(name) {
            return bad(format!("the tool {name} is declared twice"));
        }
        let schema = offer.input_schema.as_ref().map_or(0, json_bytes);
        if offer.input_schema.as_ref().is_some_and(|schema| !schema.is_object()) {
            return bad(format!("the schema of {name} is not a JSON object"));
        }
        if schema > TOOL_SCHEMA_BYTES_MAX {
            return large(format!(
                "the schema of {name} has {schema} bytes, over the limit of {TOOL_SCHEMA_BYTES_MAX}"
            ));
        }
        bytes += name.len() + offer.description.len() + schema;
    }
    if bytes > HOST_DECLARATION_BYTES_MAX {
        return large(format!("{bytes} bytes are over the limit of {HOST_DECLARATION_BYTES_MAX}"));
    }
    Ok(bytes)
}

fn json_bytes(value: &serde_json::Value) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |text| text.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn declaration(names: &[&str]) -> Declaration {
        let tools: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
        serde_json::from_value(json!({"tools": tools})).unwrap()
    }

    fn session(name: &str) -> SessionId {
        SessionId::parse(name).unwrap()
    }

    fn owner(name: &str) -> Owner {
        Owner::parse(name).unwrap()
    }

    fn caller(name: &str, of: Option<&str>, rules: &[&str]) -> Caller {
        let rules = rules.iter().map(|rule| ToolRule::parse(*rule).unwrap()).collect();
        Caller {
            session: session(name),
            parent: None,
            owner: of.map(owner),
            rules,
            words: &windlass_protocol::kinds::DEFAULT.terms,
        }
    }

    fn attached(hub: &Hub, scope: HostScope, names: &[&str]) -> Arc<AttachedHost> {
        let host = hub.attach(scope).unwrap();
        assert_eq!(hub.declare(&host, declaration(names)), Ok(names.len()));
        host
    }

    #[test]
    fn the_narrowest_scope_wins_then_the_host_that_attached_last() {
        let hub = Hub::default();
        let shared = attached(&hub, HostScope::Shared, &["files.read", "files.write", "web.get"]);
        let owners = attached(&hub, HostScope::Owner(owner("o")), &["files.read", "b"]);
        let older = attached(&hub, HostScope::Session(session("s")), &["a", "b"]);
        let newer = attached(&hub, HostScope::Session(session("s")), &["a"]);
        let s = caller("s", Some("o"), &["files.*"]);
        let other = caller("t", None, &["web.get"]);
        let of_owner = caller("u", Some("o"), &[]);
        for (caller, name, expected) in [
            (&s, "a", Some(&newer)),
            (&s, "b", Some(&older)),
            (&s, "files.read", Some(&owners)),
            (&s, "files.write", Some(&shared)),
            (&s, "web.get", None),
            (&s, "nothing", None),
            (&of_owner, "a", None),
            (&of_owner, "b", Some(&owners)),
            (&of_owner, "files.write", None),
            (&other, "web.get", Some(&shared)),
            (&other, "files.read", None),
            (&other, "b", None),
        ] {
            let found = hub.route(caller, name).map(|route| route.host.id());
            assert_eq!(found, expected.map(|host| host.id()), "{} {name}", caller.session);
        }
        let names = |caller: &Caller| -> Vec<String> {
            hub.offers(caller).iter().map(|offer| offer.name.clone()).collect()
        };
        assert_eq!(names(&s), ["a", "b", "files.read", "files.write"]);
        assert_eq!(names(&of_owner), ["b", "files.read"]);
        assert_eq!(names(&other), ["web.get"]);
        hub.detach(newer.id());
        assert_eq!(hub.route(&s, "a").unwrap().host.id(), older.id());
        for host in [&older, &owners, &shared] {
            hub.detach(host.id());
        }
        hub.detach(shared.id());
        assert!(names(&s).is_empty() && hub.is_empty());
        let table = hub.lock();
        assert!(table.by_session.is_empty() && table.by_owner.is_empty());
        assert_eq!((table.shared.len(), table.declared_bytes), (0, 0));
    }

    #[test]
    fn a_session_of_a_tenant_finds_no_tools_of_the_nodes_owner() {
        let hub = Hub::default();
        attached(&hub, HostScope::Shared, &["files.read"]);
        attached(&hub, HostScope::Everyone, &["clock"]);
        attached(&hub, HostScope::Owner(owner("o")), &["a"]);
        attached(&hub, HostScope::Owner(owner("o@acme")), &["b"]);
        attached(&hub, HostScope::Session(session("s")), &["c"]);
        attached(&hub, HostScope::Session(session("s@acme")), &["d"]);
        for (name, of, expected) in [
            ("s", "o", "a c clock files.read"),
            ("s@acme", "o@acme", "b d"),
            ("s@other", "o@other", ""),
        ] {
            let offers = hub.offers(&caller(name, Some(of), &["files.*"]));
            let found: Vec<&str> = offers.iter().map(|offer| &*offer.name).collect();
            assert_eq!(found.join(" "), expected, "{name}");
        }
    }

    #[test]
    fn a_declaration_replaces_the_last_or_changes_nothing() {
        let hub = Hub::default();
        let host = attached(&hub, HostScope::Session(session("s")), &["a"]);
        let s = caller("s", None, &[]);
        let schema = |bytes: usize| json!({"x": "y".repeat(bytes - r#"{"x":""}"#.len())});
        let many: Vec<String> = (0..=HOST_TOOLS_MAX).map(|n| format!("t{n}")).collect();
        let heavy = |count: usize| {
            let tool = |n| json!({"name": format!("t{n}"), "input_schema": schema(64 * 1024)});
            (0..count).map(tool).collect::<Vec<_>>()
        };
        let many: Vec<_> = many.iter().map(|name| json!({"name": name})).collect();
        for (tools, expected) in [
            (json!([{"name": "b"}, {"name": "b"}]), ErrorCode::BadRequest),
            (json!([{"name": "windlass.x"}]), ErrorCode::BadRequest),
            (json!([{"name": "a-b"}]), ErrorCode::BadRequest),
            (json!([{"name": "b", "input_schema": []}]), ErrorCode::BadRequest),
            (json!([{"name": "b", "input_schema": schema(65_537)}]), ErrorCode::MessageTooLarge),
            (json!(many), ErrorCode::MessageTooLarge),
            (json!(heavy(65)), ErrorCode::MessageTooLarge),
        ] {
            let declaration = serde_json::from_value(json!({"tools": tools})).unwrap();
            let refused = hub.declare(&host, declaration).unwrap_err();
            assert_eq!(refused.code, expected, "{}", refused.message);
            assert!(hub.route(&s, "a").is_some(), "the former tools stay");
        }
        let largest = serde_json::from_value(json!({"tools": heavy(63)})).unwrap();
        assert_eq!(hub.declare(&host, largest), Ok(63));
        assert!(hub.route(&s, "a").is_none());
        assert_eq!(hub.declare(&host, Declaration::default()), Ok(0));
        assert!(hub.offers(&s).is_empty());
    }

    #[test]
    fn the_number_of_hosts_and_the_size_of_declarations_are_limited() {
        let hub = Hub::default();
        let heavy: Declaration = serde_json::from_value(json!({"tools": [
            {"name": "a", "description": "x".repeat(HOST_DECLARATION_BYTES_MAX - 1)}
        ]}))
        .unwrap();
        for n in 0..DECLARED_BYTES_MAX / HOST_DECLARATION_BYTES_MAX {
            let host = hub.attach(HostScope::Shared).unwrap();
            assert_eq!(hub.declare(&host, heavy.clone()), Ok(1), "{n}");
        }
        let last = hub.attach(HostScope::Shared).unwrap();
        assert_eq!(
            hub.declare(&last, declaration(&["b"])).unwrap_err().code,
            ErrorCode::Overloaded
        );
        let attached = hub.lock().hosts.len();
        for _ in attached..HOSTS_MAX {
            hub.attach(HostScope::Shared).unwrap();
        }
        assert_eq!(hub.attach(HostScope::Shared).unwrap_err().code, ErrorCode::Overloaded);
        hub.detach(last.id());
        hub.attach(HostScope::Shared).unwrap();
    }

    #[tokio::test]
    async fn when_a_session_ends_its_own_hosts_are_detached() {
        let hub = Hub::default();
        let own = hub.attach(HostScope::Session(session("s"))).unwrap();
        let others = hub.attach(HostScope::Session(session("t"))).unwrap();
        let owners = hub.attach(HostScope::Owner(owner("o"))).unwrap();
        for host in [&own, &owners] {
            host.called_by(&session("s"));
        }
        hub.forget(&session("s"));
        assert_eq!(own.next().await, Err(DetachReason::SessionOver));
        assert_eq!((others.ending(), owners.ending()), (None, None));
        assert!(owners.take_callers().is_empty());
    }

    #[tokio::test]
    async fn detaching_all_waits_until_all_hosts_are_gone() {
        let hub = Hub::default();
        hub.detach_all().await;
        let hosts = [0; 3].map(|_| hub.attach(HostScope::Shared).unwrap());
        let leaving = async {
            for host in &hosts {
                assert_eq!(host.next().await, Err(DetachReason::NodeStops));
                hub.detach(host.id());
            }
        };
        tokio::join!(hub.detach_all(), leaving);
        assert!(hub.is_empty());
    }
}
