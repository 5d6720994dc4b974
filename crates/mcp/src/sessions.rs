//! Finds the session of a call by its name, or creates it. A session id is used only once, so the
//! next session of a name has the next number.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use windlass_client::{Client, ClientError, WhichSessions};
use windlass_protocol::agent::AgentRequest;
use windlass_protocol::api::{CreateSession, Session, SessionState, TurnQuery};
use windlass_protocol::kinds::agent::is_agent;
use windlass_protocol::limits::WAIT_MS_MAX;
use windlass_protocol::packages::{
    CreatePackageEnvironment, PackageEnvironment, PackageEnvironmentState,
};
use windlass_protocol::{ErrorCode, SessionId, kinds};

use crate::call::ClientCall;
use crate::door::Door;
use crate::fault::Fault;
use crate::names::{SessionScope, SessionTarget, id_of};
use crate::outlook::{self, PackageWays};
use crate::schema;

/// Number of cached names. The cache is cleared when it is full.
const CACHED_MAX: usize = 1024;

/// How long a session lives without a turn: long enough for a client that returns the next day.
/// Later the next call gets a new session and a note about it.
const IDLE_S: u64 = 24 * 3600;

/// Attempts to create a session while other processes create and end sessions of the same name.
const TRIES_MAX: u32 = 16;

/// Sessions by name, as they were at their last use.
#[derive(Debug, Default)]
pub(crate) struct SessionCache {
    sessions: Mutex<HashMap<String, CachedSession>>,
}

/// A session, and the kind of its worker.
#[derive(Debug, Clone)]
struct CachedSession {
    id: SessionId,
    kind: String,
    /// Its package environment.
    environment: Option<String>,
}

/// The session that a call asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionRequest<'a> {
    pub name: Option<&'a str>,
    pub language: Option<&'a str>,
    /// Packages that the session's code imports.
    pub packages: &'a [String],
}

impl SessionRequest<'_> {
    /// The name of the session. Without one, each language but the default has a session of its own.
    fn name(&self) -> Option<String> {
        let own = || self.language.filter(|language| *language != kinds::DEFAULT.name);
        let named = self.name.map(str::to_owned);
        named.or_else(|| Some(own()?.replace(|char: char| !char.is_ascii_alphanumeric(), "-")))
    }

    /// Checks that a session that exists is of the language, and has the packages.
    fn check(&self, found: &CachedSession, environment: Option<&str>) -> Result<(), Fault> {
        let CachedSession { id, kind, .. } = found;
        match self.language {
            Some(language) if language != kind && !kind.is_empty() => Err(Fault::Language {
                session: id.clone(),
                kind: kind.clone(),
                language: language.to_owned(),
            }),
            _ if environment.is_some() && environment != found.environment.as_deref() => {
                Err(Fault::Packages(id.clone()))
            }
            _ => Ok(()),
        }
    }

    /// The package environment with the packages. Builds it if it is not there.
    async fn environment(&self, door: &Door) -> Result<Option<PackageEnvironment>, Fault> {
        if self.packages.is_empty() {
            return Ok(None);
        }
        // The agent of a session has no network of its own, so it cannot have packages downloaded either.
        if door.agent.is_some() {
            return Err(Fault::Arguments(PACKAGES_OF_AGENT.to_owned()));
        }
        let request = CreatePackageEnvironment {
            python: door.shared.interpreter.clone(),
            packages: self.packages.to_vec(),
            wait_ms: WAIT_MS_MAX,
            ..CreatePackageEnvironment::default()
        };
        let made = door.client().await?.create_package_environment(&request).await?;
        match made.state {
            PackageEnvironmentState::Ready => Ok(Some(made)),
            PackageEnvironmentState::Building => Err(Fault::Installing),
            PackageEnvironmentState::Failed => {
                Err(Fault::NotInstalled(made.error.unwrap_or_default()))
            }
        }
    }
}

/// Why the agent of a session gets no packages.
const PACKAGES_OF_AGENT: &str = "packages cannot be added here; the user can start the agent's session with an \
     environment that has them (`windlass env create`)";

/// What a call does with a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    Read,
    Work,
}

/// The session that a call works in.
#[derive(Debug)]
pub(crate) struct CallSession {
    pub id: SessionId,
    /// A note for the model: the session is new, and why.
    pub note: Option<String>,
    name: Option<String>,
}

impl CachedSession {
    fn of(session: &Session) -> Self {
        let (id, kind) = (session.id.clone(), session.kind.clone());
        Self { id, kind, environment: session.environment.clone() }
    }
}

impl SessionCache {
    fn get(&self, name: &str) -> Option<CachedSession> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn put(&self, name: &str, session: CachedSession) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= CACHED_MAX {
            sessions.clear();
        }
        sessions.insert(name.to_owned(), session);
    }

    fn forget(&self, name: &str) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// The session that a call names, or the client's default session. Creates it if it does not exist.
pub(crate) async fn find_or_make(
    door: &Door,
    call: &ClientCall,
    request: SessionRequest<'_>,
) -> Result<CallSession, Fault> {
    let environment = request.environment(door).await?;
    let made = environment.as_ref();
    let environment = made.map(|made| &*made.name);
    match call.scope.session(request.name().as_deref())? {
        SessionTarget::ById(id) => {
            check_scope(call, &id, Intent::Work)?;
            if request.language.is_some() || environment.is_some() {
                let session = door.client().await?.session(&id).await?;
                request.check(&CachedSession::of(&session), environment)?;
            }
            Ok(CallSession { id, note: None, name: None })
        }
        SessionTarget::Own { name, or } => {
            if let Some(cached) = door.shared.session_cache.get(&name) {
                request.check(&cached, environment)?;
                return Ok(CallSession { id: cached.id, note: None, name: Some(name) });
            }
            let client = door.client().await?;
            let (session, note) = match live(client, &call.scope, &name, or.as_ref()).await? {
                // The name is the id of another client's session. It is not usable here, and must
                // not become the name of a new session either.
                Some(found) if Some(&found.id) == or.as_ref() => {
                    return Err(Fault::Foreign(found.id));
                }
                Some(found) => (found, None),
                None => make(door, client, call, &name, request.language, made).await?,
            };
            request.check(&session, environment)?;
            let id = session.id.clone();
            door.shared.session_cache.put(&name, session);
            Ok(CallSession { id, note, name: Some(name) })
        }
    }
}

/// The session that a call names, or the client's default session. It must exist.
pub(crate) async fn find(
    door: &Door,
    call: &ClientCall,
    name: Option<&str>,
    intent: Intent,
) -> Result<SessionId, Fault> {
    match call.scope.session(name)? {
        SessionTarget::ById(id) => {
            check_scope(call, &id, intent)?;
            Ok(id)
        }
        SessionTarget::Own { name, or } => {
            if let Some(cached) = door.shared.session_cache.get(&name) {
                return Ok(cached.id);
            }
            let or = or.filter(|id| check_scope(call, id, intent).is_ok());
            let client = door.client().await?;
            let found = live(client, &call.scope, &name, or.as_ref()).await?;
            found.map(|found| found.id).ok_or(Fault::NoSession(name))
        }
    }
}

/// The session has ended: removes it from the cache. Returns whether the caller can look for
/// another session of the same name.
pub(crate) fn forget(door: &Door, session: &CallSession) -> bool {
    if let Some(name) = &session.name {
        door.shared.session_cache.forget(name);
    }
    session.name.is_some()
}

fn is_unknown(error: &ClientError) -> bool {
    matches!(error.api_code(), Some(ErrorCode::SessionNotFound | ErrorCode::TurnNotFound))
}

pub(crate) fn is_over(error: &ClientError) -> bool {
    matches!(error.api_code(), Some(ErrorCode::SessionEnded | ErrorCode::SessionNotFound))
}

/// Checks that a client may use a session. Code runs only in the client's own sessions, which have
/// the policy that the user chose for it; another session may have a looser one. A client without
/// its own policy may also read the output of other sessions.
pub(crate) fn check_scope(call: &ClientCall, id: &SessionId, intent: Intent) -> Result<(), Fault> {
    let reads = intent == Intent::Read && call.policy.is_none();
    match reads || call.scope.owns(id) {
        true => Ok(()),
        false => Err(Fault::Foreign(id.clone())),
    }
}

/// The newest live session of a name, or else the live session with the id `or`.
async fn live(
    client: &Client,
    scope: &SessionScope,
    name: &str,
    or: Option<&SessionId>,
) -> Result<Option<CachedSession>, Fault> {
    let sessions = client.sessions(WhichSessions::Live).await?.sessions;
    let live = || sessions.iter().filter(|session| session.state != SessionState::Ended);
    let newest = live()
        .filter_map(|session| Some((scope.use_of(name, &session.id)?, session)))
        .max_by_key(|(number, _)| *number);
    let newest = newest.map(|(_, session)| session);
    let found = newest.or_else(|| live().find(|session| or == Some(&session.id)));
    Ok(found.map(CachedSession::of))
}

async fn make(
    door: &Door,
    client: &Client,
    call: &ClientCall,
    name: &str,
    language: Option<&str>,
    environment: Option<&PackageEnvironment>,
) -> Result<(CachedSession, Option<String>), Fault> {
    let before = last_use(client, &call.scope, name).await?;
    // Another process has created the session meanwhile.
    if let Some((_, session)) = before.as_ref().filter(|(_, it)| it.state != SessionState::Ended) {
        return Ok((CachedSession::of(session), None));
    }
    // The call is sent again, and the session in which it ran has ended since.
    if let (Some((_, ended)), Some(turn)) = (&before, &call.turn) {
        match client.turn(&ended.id, turn, TurnQuery::default()).await {
            Ok(_) => {
                let (session, turn) = (ended.id.clone(), turn.clone());
                return Err(Fault::AlreadyRan { session, turn });
            }
            Err(error) if is_unknown(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let is_default = language.is_none_or(|language| language == kinds::DEFAULT.name);
    let allow_packages = is_default && call.allow_packages;
    let has_own = is_default && environment.is_none();
    let interpreter = door.shared.interpreter.clone().filter(|_| has_own);
    let permissions = door.shared.permissions;
    let agent =
        language.is_some_and(is_agent).then(|| AgentRequest { permissions, ..<_>::default() });
    let mut number = before.as_ref().map_or(1, |(number, _)| number + 1);
    let client = &call.named(client);
    for attempt in 0..TRIES_MAX {
        let id = id_of(name, number)?;
        let create = CreateSession {
            id: Some(id.clone()),
            workspace: call.workspace.as_ref().map(|path| path.to_string_lossy().into_owned()),
            worker: language.map(str::to_owned),
            interpreter: interpreter.clone(),
            environment: environment.map(|made| made.name.clone()),
            allow_packages,
            agent: agent.clone(),
            policy: call.policy.clone(),
            idle_s: Some(IDLE_S),
            ..CreateSession::default()
        };
        match client.create_session(&create).await {
            Ok(created) => {
                let arrive = PackageWays::of(allow_packages);
                let named = interpreter.as_deref();
                let outlook = outlook::of(&created.session, named, environment, arrive);
                let note = news(&created.session, &outlook, before.as_ref());
                return Ok((CachedSession::of(&created.session), Some(note)));
            }
            // Another process created this id first. Its session is live, or it has ended already.
            Err(error) if error.api_code() == Some(ErrorCode::SessionExists) => {
                if let Some(found) = live(client, &call.scope, name, None).await? {
                    return Ok((found, None));
                }
                // In a fleet, another node may have it.
                if let Ok(session) = client.session(&id).await
                    && session.state != SessionState::Ended
                {
                    return Ok((CachedSession::of(&session), None));
                }
                // The list of ended sessions is limited, so many later ids may be used too.
                number = number.saturating_add(1 << attempt);
            }
            Err(error) => return Err(without_language(door, language, error).await),
        }
    }
    Err(Fault::NoSession(name.to_owned()))
}

/// The fault of a session that cannot be created: a language that no worker of the node runs, or what the node said.
async fn without_language(door: &Door, language: Option<&str>, error: ClientError) -> Fault {
    let is_refused = error.api_code() == Some(ErrorCode::BadRequest);
    let Some(language) = language.filter(|_| is_refused) else { return error.into() };
    let Some(list) = door.workers().await else { return error.into() };
    if kinds::find(language).is_some() || list.workers.iter().any(|one| one.name == language) {
        return error.into();
    }
    let known = schema::languages(list).into_iter().map(str::to_owned).collect();
    Fault::NoLanguage { language: language.to_owned(), known }
}

async fn last_use(
    client: &Client,
    scope: &SessionScope,
    name: &str,
) -> Result<Option<(u32, Session)>, Fault> {
    let sessions = client.sessions(WhichSessions::EndedToo).await?.sessions;
    let uses = sessions.into_iter();
    Ok(uses
        .filter_map(|session| Some((scope.use_of(name, &session.id)?, session)))
        .max_by_key(|(number, _)| *number))
}

fn news(session: &Session, outlook: &str, before: Option<&(u32, Session)>) -> String {
    let mut news = format!("new session {} in {}: {outlook}", session.id, session.workspace);
    if let Some((_, before)) = before {
        let reason =
            before.ended.as_ref().and_then(|ended| serde_json::to_value(ended.reason).ok());
        let reason = reason.as_ref().and_then(|reason| reason.as_str()).unwrap_or("ended");
        news.push_str(&format!(
            "; the previous session ended ({reason}) and its variables are gone"
        ));
    }
    news
}
