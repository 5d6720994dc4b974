//! Who offers which tools to whom. Owns the table of attached hosts and what each has declared;
//! sends nothing itself.
//!
//! A name means the tool that was offered most narrowly: by a host of the session, then by one of
//! its owner's, then by one that is shared by all whose policy allows it; among hosts of the same
//! reach, the one that came last.

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

use super::host::{Ending, Host};
use crate::refused::HostRefused;

/// Hosts attached at once. One more is refused as `overloaded`.
const HOSTS_MAX: usize = 4096;

/// Bytes that all hosts together have declared, as JSON text. A declaration that would pass it is
/// refused as `overloaded`.
const DECLARED_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Which host, for as long as this node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(u64);

/// For whom a host's tools are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    Session(SessionId),
    /// All sessions that were created with this owner, and will be.
    Owner(Owner),
    /// All sessions whose policy allows the tool.
    Shared,
    /// All sessions.
    Everyone,
}

/// Who calls.
#[derive(Debug, Clone)]
pub struct Caller {
    pub session: SessionId,
    pub owner: Option<Owner>,
    /// Which shared tools it may call.
    pub rules: Vec<ToolRule>,
    /// How its language writes types and values.
    pub words: &'static LanguageTerms,
}

/// Where a call goes.
#[derive(Debug, Clone)]
pub struct Route {
    pub host: Arc<Host>,
    /// How long a call may take where the code does not say.
    pub deadline_ms: Option<u64>,
}

/// See the module's first lines.
#[derive(Debug, Default)]
pub struct Hub {
    table: Mutex<Table>,
    /// Told when the last host is gone.
    emptied: Notify,
}

/// A declaration that may be installed.
#[derive(Debug)]
pub struct Prepared {
    tools: Tools,
    /// Its size as JSON text.
    bytes: usize,
}

type Tools = HashMap<String, Arc<ToolOffer>>;

#[derive(Debug, Default)]
struct Table {
    last: u64,
    declared_bytes: usize,
    hosts: HashMap<HostId, Attached>,
    /// Each list in the order of arrival.
    by_session: HashMap<SessionId, Vec<HostId>>,
    by_owner: HashMap<Owner, Vec<HostId>>,
    shared: Vec<HostId>,
    everyone: Vec<HostId>,
}

#[derive(Debug)]
struct Attached {
    host: Arc<Host>,
    scope: Scope,
    tools: Tools,
    declared_bytes: usize,
}

impl Hub {
    pub fn attach(&self, scope: Scope) -> Result<Arc<Host>, HostRefused> {
        let mut table = self.lock();
        if table.hosts.len() >= HOSTS_MAX {
            let message = format!("{HOSTS_MAX} tool hosts are attached already");
            return Err(HostRefused::new(ErrorCode::Overloaded, message));
        }
        table.last += 1;
        let id = HostId(table.last);
        let host = Arc::new(Host::new(id));
        table.list_of(&scope).push(id);
        let attached =
            Attached { host: host.clone(), scope, tools: HashMap::new(), declared_bytes: 0 };
        table.hosts.insert(id, attached);
        Ok(host)
    }

    #[cfg(test)]
    pub fn declare(&self, host: &Host, declaration: Declaration) -> Result<usize, HostRefused> {
        self.install(host, Prepared::new(declaration)?)
    }

    /// Replaces what the host offers; how many tools that is. When it fails the former ones stay.
    pub fn install(&self, host: &Host, prepared: Prepared) -> Result<usize, HostRefused> {
        let Prepared { mut tools, bytes } = prepared;
        let count = tools.len();
        let mut table = self.lock();
        let declared_bytes = table.declared_bytes;
        // A host that is gone offers nothing, and has nobody to tell.
        let Some(attached) = table.hosts.get_mut(&host.id()) else { return Ok(0) };
        let in_all = declared_bytes - attached.declared_bytes + bytes;
        if in_all > DECLARED_BYTES_MAX {
            let message = format!("tools of {DECLARED_BYTES_MAX} bytes are declared already");
            return Err(HostRefused::new(ErrorCode::Overloaded, message));
        }
        attached.declared_bytes = bytes;
        std::mem::swap(&mut attached.tools, &mut tools);
        table.declared_bytes = in_all;
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

    /// Whether nobody offers tools to sessions of their own. Hosts for all sessions come with the
    /// node, and do not keep it.
    pub fn is_unused(&self) -> bool {
        let table = self.lock();
        table.by_session.is_empty() && table.by_owner.is_empty()
    }

    /// Whether a host is there for all sessions of this owner.
    pub fn serves_owner(&self, owner: &Owner) -> bool {
        self.lock().by_owner.contains_key(owner)
    }

    /// Lets go of all hosts, and waits until they are gone.
    pub async fn part(&self) {
        let mut emptied = pin!(self.emptied.notified());
        emptied.as_mut().enable();
        for attached in self.lock().hosts.values() {
            attached.host.end(Ending::NodeStops);
        }
        if !self.is_empty() {
            emptied.await;
        }
    }

    /// Where a call of this name goes: to the session's own hosts first, newest first, then to its
    /// owner's, then to the shared ones that a rule allows.
    pub fn route(&self, caller: &Caller, name: &str) -> Option<Route> {
        let table = self.lock();
        table.reachable(caller).find_map(|attached| {
            let offer = attached.tools.get(name)?;
            let open = attached.is_open_to(caller, name);
            open.then(|| Route { host: attached.host.clone(), deadline_ms: offer.deadline_ms })
        })
    }

    /// The tool that a name means to this caller.
    pub fn offer(&self, caller: &Caller, name: &str) -> Option<Arc<ToolOffer>> {
        let table = self.lock();
        table.reachable(caller).find_map(|attached| {
            let offer = attached.tools.get(name)?;
            attached.is_open_to(caller, name).then(|| offer.clone())
        })
    }

    /// What the caller sees: each name once, sorted.
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

    /// A session is over: nobody tells it anything more, and its own hosts are let go of.
    pub fn forget(&self, session: &SessionId) {
        let table = self.lock();
        for attached in table.hosts.values() {
            attached.host.forget_caller(session);
            if matches!(&attached.scope, Scope::Session(only) if only == session) {
                attached.host.end(Ending::SessionOver);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The hosts that may offer something to the caller, in the order in which they are asked.
    fn reachable<'t>(&'t self, caller: &'t Caller) -> impl Iterator<Item = &'t Attached> {
        let own = self.by_session.get(&caller.session);
        let owners = caller.owner.as_ref().and_then(|owner| self.by_owner.get(owner));
        let shared = (!caller.rules.is_empty()).then_some(&self.shared);
        [own, owners, shared, Some(&self.everyone)]
            .into_iter()
            .flatten()
            .flat_map(|list| list.iter().rev())
            .filter_map(|id| self.hosts.get(id))
    }

    fn list_of(&mut self, scope: &Scope) -> &mut Vec<HostId> {
        match scope {
            Scope::Session(session) => self.by_session.entry(session.clone()).or_default(),
            Scope::Owner(owner) => self.by_owner.entry(owner.clone()).or_default(),
            Scope::Shared => &mut self.shared,
            Scope::Everyone => &mut self.everyone,
        }
    }

    fn drop_list(&mut self, scope: &Scope) {
        match scope {
            Scope::Session(session) => drop(self.by_session.remove(session)),
            Scope::Owner(owner) => drop(self.by_owner.remove(owner)),
            Scope::Shared | Scope::Everyone => {}
        }
    }
}

impl Attached {
    fn is_open_to(&self, caller: &Caller, tool: &str) -> bool {
        self.scope != Scope::Shared || caller.rules.iter().any(|rule| rule.allows(tool))
    }
}

impl Prepared {
    pub fn new(declaration: Declaration) -> Result<Self, HostRefused> {
        let bytes = check(&declaration)?;
        let named = |offer: ToolOffer| (offer.name.clone(), Arc::new(offer));
        Ok(Self { tools: declaration.tools.into_iter().map(named).collect(), bytes })
    }
}

/// The declaration's size as JSON text, if all in it may be.
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
            // It may be as long as the whole declaration.
            let start: String = name.chars().take(TOOL_NAME_BYTES_MAX).collect();
            return bad(format!("{start:?} cannot name a tool: an identifier, or two with a dot"));
        }
        if !names.insert(name) {
            return bad(format!("{name} is declared twice"));
        }
        let schema = offer.input_schema.as_ref().map_or(0, json_bytes);
        if offer.input_schema.as_ref().is_some_and(|schema| !schema.is_object()) {
            return bad(format!("the schema of {name} is no JSON object"));
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
            owner: of.map(owner),
            rules,
            words: &windlass_protocol::kinds::DEFAULT.terms,
        }
    }

    fn attached(hub: &Hub, scope: Scope, names: &[&str]) -> Arc<Host> {
        let host = hub.attach(scope).unwrap();
        assert_eq!(hub.declare(&host, declaration(names)), Ok(names.len()));
        host
    }

    #[test]
    fn a_name_means_what_was_offered_most_narrowly_and_last() {
        let hub = Hub::default();
        let shared = attached(&hub, Scope::Shared, &["files.read", "files.write", "web.get"]);
        let owners = attached(&hub, Scope::Owner(owner("o")), &["files.read", "b"]);
        let older = attached(&hub, Scope::Session(session("s")), &["a", "b"]);
        let newer = attached(&hub, Scope::Session(session("s")), &["a"]);
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
    fn a_declaration_replaces_the_last_or_changes_nothing() {
        let hub = Hub::default();
        let host = attached(&hub, Scope::Session(session("s")), &["a"]);
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
    fn there_is_an_end_to_hosts_and_to_what_they_declare() {
        let hub = Hub::default();
        let heavy: Declaration = serde_json::from_value(json!({"tools": [
            {"name": "a", "description": "x".repeat(HOST_DECLARATION_BYTES_MAX - 1)}
        ]}))
        .unwrap();
        for n in 0..DECLARED_BYTES_MAX / HOST_DECLARATION_BYTES_MAX {
            let host = hub.attach(Scope::Shared).unwrap();
            assert_eq!(hub.declare(&host, heavy.clone()), Ok(1), "{n}");
        }
        let last = hub.attach(Scope::Shared).unwrap();
        assert_eq!(
            hub.declare(&last, declaration(&["b"])).unwrap_err().code,
            ErrorCode::Overloaded
        );
        let attached = hub.lock().hosts.len();
        for _ in attached..HOSTS_MAX {
            hub.attach(Scope::Shared).unwrap();
        }
        assert_eq!(hub.attach(Scope::Shared).unwrap_err().code, ErrorCode::Overloaded);
        hub.detach(last.id());
        hub.attach(Scope::Shared).unwrap();
    }

    #[tokio::test]
    async fn when_a_session_ends_its_own_hosts_are_let_go_of() {
        let hub = Hub::default();
        let own = hub.attach(Scope::Session(session("s"))).unwrap();
        let others = hub.attach(Scope::Session(session("t"))).unwrap();
        let owners = hub.attach(Scope::Owner(owner("o"))).unwrap();
        for host in [&own, &owners] {
            host.called_by(&session("s"));
        }
        hub.forget(&session("s"));
        assert_eq!(own.next().await, Err(Ending::SessionOver));
        assert_eq!((others.ending(), owners.ending()), (None, None));
        assert!(owners.take_callers().is_empty());
    }

    #[tokio::test]
    async fn parting_waits_until_all_hosts_are_gone() {
        let hub = Hub::default();
        hub.part().await;
        let hosts = [0; 3].map(|_| hub.attach(Scope::Shared).unwrap());
        let leaving = async {
            for host in &hosts {
                assert_eq!(host.next().await, Err(Ending::NodeStops));
                hub.detach(host.id());
            }
        };
        tokio::join!(hub.part(), leaving);
        assert!(hub.is_empty());
    }
}
