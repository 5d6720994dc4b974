//! Logins of the web console: who may log in, how long a login lasts, and where the console's own door listens. A login
//! has the rights of the client that asked for it, and no more. Knows no HTTP.

mod door;
mod login_file;
mod logins;
mod signing;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use windlass_client::{TokenRights, TokenScope};
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{ConsoleLogin, ConsoleSession};

use crate::clock;
use crate::failure::Failure;
use crate::http::{DoorTokens, sha256};

use door::{ConsoleDoor, is_at_port};
use login_file::{LoginFile, LoginRecords, LoginSnapshot};
use logins::{ActiveLogin, CODE_LIFE_MS, ConsoleLogins, LOGIN_LIFE_MS};
pub(crate) use logins::{LoginClient, LoginId};
use signing::{ID_BYTES, LoginSigner, SECRET_BYTES, cookie_parts, random_hex};

/// How long a login lasts after its last use, in seconds: the age of its cookie.
pub(crate) const LOGIN_LIFE_S: u64 = LOGIN_LIFE_MS / 1000;

/// The message for a login that is not valid, whatever the reason.
const ENDED: &str = "this login of the console has ended; log in again";

/// The message for a code that is not valid, whatever the reason.
const CODE_USED: &str =
    "the login code was used already, or has expired; run `windlass console` again";

/// With what a person logs in.
pub(crate) enum LoginCredential {
    /// From the address that `windlass console` opens.
    Code(String),
    /// A token of the TCP door.
    Token(String),
}

/// A login that has begun.
pub(crate) struct BegunLogin {
    /// The value of its cookie.
    pub cookie: String,
    pub session: ConsoleSession,
}

/// A request with a valid login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsoleVisit {
    pub login: LoginId,
    pub client: LoginClient,
    pub rights: TokenRights,
}

/// See the module documentation.
pub(crate) struct ConsoleAccess {
    file: LoginFile,
    tokens: DoorTokens,
    /// Held only for moments: the thread that serves all requests takes it. No file is written meanwhile.
    state: Mutex<ConsoleState>,
    /// Notified when the console's door has been opened.
    opened: Notify,
}

struct ConsoleState {
    signer: LoginSigner,
    logins: ConsoleLogins,
    door: ConsoleDoor,
    /// Number of snapshots so far.
    snapshots: u64,
}

/// Whether the file of the logins has what the node took over from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoginFileState {
    Current,
    /// The file has logins that the node has ended.
    Outdated,
}

impl ConsoleAccess {
    /// Takes over the logins of an earlier node from `file`. Opens their address if one of them depends on it.
    pub fn open(file: PathBuf, tokens: DoorTokens) -> Self {
        let file = LoginFile::new(file);
        let (state, file_state) = match file.read() {
            Ok(None) => (ConsoleState::new(None), LoginFileState::Current),
            Ok(Some(records)) => ConsoleState::restore(records, clock::now_ms()),
            Err(error) => {
                let path = file.path().display();
                tracing::warn!(%path, %error, "the logins of the console cannot be read: they have ended");
                (ConsoleState::new(None), LoginFileState::Outdated)
            }
        };
        let opened = Notify::new();
        opened.notify_one();
        let access = Self { file, tokens, state: Mutex::new(state), opened };
        if file_state == LoginFileState::Outdated {
            access.replace_file();
        }
        access
    }

    /// Makes sure that no later node takes over logins that have ended.
    fn replace_file(&self) {
        let snapshot = self.lock().snapshot();
        let Err(error) = self.file.write(&snapshot) else { return };
        tracing::warn!(%error, "cannot store the logins of the console: their file is removed");
        if let Err(error) = self.file.remove() {
            let path = self.file.path().display();
            tracing::error!(
                %path,
                %error,
                "logins of the console have ended, but the next node accepts them: remove the file"
            );
        }
    }

    /// Makes a code for a login with the rights of `client`, and opens the console's door if it is not open.
    pub fn offer_login(&self, client: LoginClient) -> Result<ConsoleLogin, Failure> {
        let mut state = self.lock();
        state.refuse_if_stopped()?;
        let address = state.door.open().map_err(|error| {
            Failure::while_making("cannot listen on this machine for the console", &error)
        })?;
        let code = random_hex::<SECRET_BYTES>();
        let added = state.logins.add_code(code.clone(), client, clock::now_ms());
        added.map_err(|error| Failure::new(ErrorCode::Overloaded, error.to_string()))?;
        self.opened.notify_one();
        let url = format!("http://{address}/console/#login={code}");
        Ok(ConsoleLogin { url, expires_in_s: CODE_LIFE_MS / 1000 })
    }

    /// Begins a login. `host` is where the page comes from. If one of the browser's cookies is for a login of the same
    /// client, that login goes on instead: a new cookie would take it from the other pages of the browser. Blocks.
    pub fn log_in(
        &self,
        credential: LoginCredential,
        host: &str,
        cookies: &[String],
    ) -> Result<BegunLogin, Failure> {
        let now_ms = clock::now_ms();
        let client = match credential {
            LoginCredential::Code(code) => {
                let client = self.lock().logins.redeem(&code, now_ms);
                client.ok_or_else(|| refused(CODE_USED))?
            }
            LoginCredential::Token(token) => LoginClient::Token { sha256: sha256(token.trim()) },
        };
        let rights = self
            .rights_of(&client)
            .ok_or_else(|| refused("the token is not one of the node's tokens, or has expired"))?;
        let cookies = cookies.iter().map(String::as_str);
        let mut state = self.lock();
        state.refuse_if_stopped()?;
        let known = state.login_of(cookies, host, now_ms, |active| active.client == client);
        if let Some(known) = known.map(|active| active.id.clone()) {
            let is_renewed = state.logins.renew(&known, now_ms);
            let expires_at_ms =
                state.logins.find(known.as_str(), now_ms).map(|one| one.expires_at_ms);
            let begun = state.begun(&known, rights, expires_at_ms.unwrap_or(now_ms));
            drop(state);
            if is_renewed {
                self.store_logins();
            }
            return Ok(begun);
        }
        let id = LoginId::new(random_hex::<ID_BYTES>());
        let expires_at_ms = now_ms.saturating_add(LOGIN_LIFE_MS);
        let login = ActiveLogin { id: id.clone(), client, host: host.to_owned(), expires_at_ms };
        let displaced = state.logins.begin(login, now_ms);
        let begun = state.begun(&id, rights, expires_at_ms);
        let snapshot = state.snapshot();
        drop(state);
        match self.file.write(&snapshot) {
            Ok(()) => Ok(begun),
            Err(error) => {
                self.lock().logins.undo(&id, displaced);
                Err(Failure::while_making("cannot store a login of the console", &error))
            }
        }
    }

    /// Checks a request by its cookies, its key and its `Host`.
    pub fn check<'c>(
        &self,
        cookies: impl Iterator<Item = &'c str>,
        key: Option<&str>,
        host: &str,
    ) -> Result<ConsoleVisit, Failure> {
        let Some(key) = key else {
            return Err(refused("the request has no key of a login of the console"));
        };
        let state = self.lock();
        let has_key = |active: &ActiveLogin| state.signer.is_key(&active.id, key);
        let active = state.login_of(cookies, host, clock::now_ms(), has_key);
        let found = active.map(|active| (active.id.clone(), active.client.clone()));
        drop(state);
        let (login, client) = found.ok_or_else(|| refused(ENDED))?;
        let rights = self.rights_of(&client).ok_or_else(|| refused(ENDED))?;
        Ok(ConsoleVisit { login, client, rights })
    }

    /// Notes that a login was used. Returns the value of its cookie if the cookie's age begins again; the caller then
    /// calls [`Self::store_logins`].
    pub fn renew(&self, login: &LoginId) -> Option<String> {
        let mut state = self.lock();
        let is_renewed = state.logins.renew(login, clock::now_ms());
        is_renewed.then(|| state.signer.cookie(login))
    }

    /// Writes the file of the logins. Blocks.
    pub fn store_logins(&self) {
        let mut state = self.lock();
        if state.door.is_stopped() {
            // The file belongs to the next node.
            return;
        }
        let snapshot = state.snapshot();
        drop(state);
        if let Err(error) = self.file.write(&snapshot) {
            // The login then ends earlier after a restart of the node.
            tracing::warn!(%error, "cannot store the logins of the console");
        }
    }

    /// Ends a login. Blocks.
    pub fn log_out(&self, login: &LoginId) -> Result<(), Failure> {
        let mut state = self.lock();
        state.refuse_if_stopped()?;
        state.logins.end(login);
        let snapshot = state.snapshot();
        drop(state);
        self.file.write(&snapshot).map_err(|error| {
            Failure::while_making("cannot store that a login of the console has ended", &error)
        })
    }

    /// Waits until the console's door has been opened. Returns its IPv4 address and its listeners, once.
    pub async fn opened(&self) -> (SocketAddr, Vec<TcpListener>) {
        loop {
            self.opened.notified().await;
            let listeners = self.lock().door.take_listeners();
            if let Some(opened) = listeners {
                return opened;
            }
        }
    }

    /// Frees the port of the console's door for the next node. The door stays closed.
    pub fn stop_listening(&self) {
        self.lock().door.stop();
    }

    /// Whether the console's door is closed for good.
    pub fn has_stopped_listening(&self) -> bool {
        self.lock().door.is_stopped()
    }

    fn rights_of(&self, client: &LoginClient) -> Option<TokenRights> {
        match client {
            LoginClient::Owner => Some(TokenRights::of_node(TokenScope::Admin)),
            LoginClient::Token { sha256 } => self.tokens.rights_of_hash(sha256),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ConsoleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ConsoleAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsoleAccess").field("file", &self.file.path()).finish_non_exhaustive()
    }
}

impl ConsoleState {
    fn new(port: Option<u16>) -> Self {
        let door = ConsoleDoor::Closed { port };
        Self { signer: LoginSigner::random(), logins: ConsoleLogins::default(), door, snapshots: 0 }
    }

    /// The logins of an earlier node that have not ended.
    fn restore(records: LoginRecords, now_ms: u64) -> (Self, LoginFileState) {
        let LoginRecords { port, secret, logins, .. } = records;
        let mut logins = ConsoleLogins::of(logins, now_ms);
        let is_at_door = |host: &str| port.is_some_and(|port| is_at_port(host, port));
        let mut door = ConsoleDoor::Closed { port };
        let mut file_state = LoginFileState::Current;
        // Logins at the TCP door do not depend on this port.
        let needed_port = port.filter(|_| logins.active().iter().any(|one| is_at_door(&one.host)));
        if let Some(port) = needed_port {
            door = ConsoleDoor::reopen(port).unwrap_or_else(|error| {
                // Open pages send their cookie and key to whatever program has the port now.
                tracing::warn!(
                    %error,
                    port,
                    "another program has the port of the console: the logins there have ended"
                );
                logins.end_at(is_at_door);
                file_state = LoginFileState::Outdated;
                ConsoleDoor::Closed { port: None }
            });
        }
        let signer = match logins.active() {
            [] => LoginSigner::random(),
            _ => LoginSigner::new(secret),
        };
        (Self { signer, logins, door, snapshots: 0 }, file_state)
    }

    /// After the node has freed its port, the next node has the file and the logins.
    fn refuse_if_stopped(&self) -> Result<(), Failure> {
        match self.door.is_stopped() {
            true => Err(Failure::new(ErrorCode::ShuttingDown, "the node is about to stop")),
            false => Ok(()),
        }
    }

    /// The login at `host` of which one of the cookies is, if `accepts` is true for it. Another program on this machine
    /// can set cookies of the same name. However many there are, each login is checked once.
    fn login_of<'c>(
        &self,
        cookies: impl Iterator<Item = &'c str>,
        host: &str,
        now_ms: u64,
        accepts: impl Fn(&ActiveLogin) -> bool,
    ) -> Option<&ActiveLogin> {
        let mut signatures = HashMap::new();
        cookies.filter_map(cookie_parts).find_map(|(id, signature)| {
            let active = self.logins.find(id, now_ms).filter(|active| active.host == host)?;
            let expected = signatures.entry(id).or_insert_with(|| {
                accepts(active).then(|| self.signer.cookie_signature(&active.id))
            });
            let is_ours = expected.as_ref().is_some_and(|expected| expected.is(signature));
            is_ours.then_some(active)
        })
    }

    /// What the page of a login gets.
    fn begun(&self, id: &LoginId, rights: TokenRights, expires_at: u64) -> BegunLogin {
        let key = self.signer.key(id);
        let scope = rights.scope.to_string();
        let session = ConsoleSession { key, scope, tenant: rights.tenant, expires_at };
        BegunLogin { cookie: self.signer.cookie(id), session }
    }

    /// The logins as they are now, for their file.
    fn snapshot(&mut self) -> LoginSnapshot {
        self.snapshots += 1;
        let secret = self.signer.secret().to_owned();
        let logins = self.logins.active().to_vec();
        let records = LoginRecords::new(self.door.port(), secret, logins);
        LoginSnapshot { number: self.snapshots, records }
    }
}

fn refused(message: &str) -> Failure {
    Failure::new(ErrorCode::Unauthorized, message)
}
