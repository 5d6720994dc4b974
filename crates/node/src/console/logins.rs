//! The table of the console's logins: codes that each work once, and logins that end when they are not used. Has no clock
//! and does no I/O.

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

/// Maximum number of codes that wait to be used.
const CODES_MAX: usize = 16;

/// How long a code works.
pub(super) const CODE_LIFE_MS: u64 = 60_000;

/// How long a login lasts after its last use.
pub(super) const LOGIN_LIFE_MS: u64 = 12 * 3600 * 1000;

/// A login is renewed by a use this long after it began or was renewed. So few uses write the file of the logins.
const RENEWED_AFTER_MS: u64 = 10 * 60 * 1000;

/// Maximum number of logins of one token, or of the owner of the socket. The next one ends the one that would end first.
const LOGINS_PER_CLIENT_MAX: usize = 16;

/// Maximum number of logins of all clients together.
const LOGINS_MAX: usize = 1024;

/// Identifies a login. Not a secret: only the signed id is a cookie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct LoginId(String);

impl LoginId {
    pub(super) fn new(id: String) -> Self {
        Self(id)
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whose rights a login has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LoginClient {
    /// The user who runs the node.
    Owner,
    /// A client with a token. The login ends with the token.
    Token {
        /// Of the token, as hexadecimal digits.
        sha256: String,
    },
}

/// A login that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ActiveLogin {
    pub id: LoginId,
    pub client: LoginClient,
    /// The header `Host` of the request that logged in. All other requests have the same.
    pub host: String,
    pub expires_at_ms: u64,
}

/// A code that was given out and not used.
struct LoginCode {
    code: String,
    client: LoginClient,
    expires_at_ms: u64,
}

/// All codes that wait have been given out within the last minute, and no more can be.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{CODES_MAX} logins of the console already wait to be used")]
pub(super) struct TooManyCodes;

/// See the module documentation.
#[derive(Default)]
pub(super) struct ConsoleLogins {
    codes: Vec<LoginCode>,
    active: Vec<ActiveLogin>,
}

impl ConsoleLogins {
    /// The logins that an earlier node has recorded.
    pub fn of(active: Vec<ActiveLogin>, now_ms: u64) -> Self {
        let mut logins = Self { codes: Vec::new(), active };
        logins.drop_expired(now_ms);
        logins
    }

    pub fn active(&self) -> &[ActiveLogin] {
        &self.active
    }

    pub fn add_code(
        &mut self,
        code: String,
        client: LoginClient,
        now_ms: u64,
    ) -> Result<(), TooManyCodes> {
        self.drop_expired(now_ms);
        if self.codes.len() >= CODES_MAX {
            return Err(TooManyCodes);
        }
        let expires_at_ms = now_ms.saturating_add(CODE_LIFE_MS);
        self.codes.push(LoginCode { code, client, expires_at_ms });
        Ok(())
    }

    /// Uses a code up. Returns for whom it was made; `None` if it was used before, has expired or never existed.
    pub fn redeem(&mut self, code: &str, now_ms: u64) -> Option<LoginClient> {
        self.drop_expired(now_ms);
        let is_it = |one: &LoginCode| bool::from(one.code.as_bytes().ct_eq(code.as_bytes()));
        let at = self.codes.iter().position(is_it)?;
        Some(self.codes.swap_remove(at).client)
    }

    /// Adds a login. If there are too many, ends the one that would end first and returns it.
    pub fn begin(&mut self, login: ActiveLogin, now_ms: u64) -> Option<ActiveLogin> {
        self.drop_expired(now_ms);
        let displaced = if self.count_of(&login.client) >= LOGINS_PER_CLIENT_MAX {
            self.end_first(|one| one.client == login.client)
        } else if self.active.len() >= LOGINS_MAX {
            self.end_first(|_| true)
        } else {
            None
        };
        self.active.push(login);
        displaced
    }

    /// Ends a login that was added in vain, and restores the one that it displaced.
    pub fn undo(&mut self, added: &LoginId, displaced: Option<ActiveLogin>) {
        self.end(added);
        let Some(login) = displaced else { return };
        // Others may have logged in meanwhile.
        if self.active.len() < LOGINS_MAX && self.count_of(&login.client) < LOGINS_PER_CLIENT_MAX {
            self.active.push(login);
        }
    }

    pub fn find(&self, id: &str, now_ms: u64) -> Option<&ActiveLogin> {
        self.active.iter().find(|login| login.id.as_str() == id && now_ms < login.expires_at_ms)
    }

    /// Notes that a login was used. Returns whether that has moved its end.
    pub fn renew(&mut self, id: &LoginId, now_ms: u64) -> bool {
        let login = self.active.iter_mut().find(|login| login.id == *id);
        let Some(login) = login.filter(|login| now_ms < login.expires_at_ms) else { return false };
        let expires_at_ms = now_ms.saturating_add(LOGIN_LIFE_MS);
        let is_due = expires_at_ms.saturating_sub(login.expires_at_ms) >= RENEWED_AFTER_MS;
        if is_due {
            login.expires_at_ms = expires_at_ms;
        }
        is_due
    }

    pub fn end(&mut self, id: &LoginId) {
        self.active.retain(|login| login.id != *id);
    }

    /// Ends the logins at the hosts that `ends` names.
    pub fn end_at(&mut self, ends: impl Fn(&str) -> bool) {
        self.active.retain(|login| !ends(&login.host));
    }

    fn count_of(&self, client: &LoginClient) -> usize {
        self.active.iter().filter(|login| login.client == *client).count()
    }

    fn end_first(&mut self, counts: impl Fn(&ActiveLogin) -> bool) -> Option<ActiveLogin> {
        let all = self.active.iter().enumerate().filter(|(_, login)| counts(login));
        let (at, _) = all.min_by_key(|(_, login)| login.expires_at_ms)?;
        Some(self.active.remove(at))
    }

    fn drop_expired(&mut self, now_ms: u64) {
        self.codes.retain(|code| now_ms < code.expires_at_ms);
        self.active.retain(|login| now_ms < login.expires_at_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str) -> LoginClient {
        LoginClient::Token { sha256: name.to_owned() }
    }

    fn login(id: &str, client: LoginClient, expires_at_ms: u64) -> ActiveLogin {
        ActiveLogin { id: LoginId::new(id.to_owned()), client, host: "h".to_owned(), expires_at_ms }
    }

    fn ids(logins: &ConsoleLogins) -> Vec<&str> {
        logins.active().iter().map(|login| login.id.as_str()).collect()
    }

    #[test]
    fn a_code_works_once_and_for_a_minute() {
        let mut logins = ConsoleLogins::default();
        logins.add_code("a".to_owned(), LoginClient::Owner, 0).unwrap();
        logins.add_code("b".to_owned(), token("t"), 0).unwrap();
        for (code, now_ms, expected) in [
            ("", 1, None),
            ("c", 1, None),
            ("a", 1, Some(LoginClient::Owner)),
            ("a", 1, None),
            ("b", CODE_LIFE_MS - 1, Some(token("t"))),
            ("b", CODE_LIFE_MS - 1, None),
        ] {
            assert_eq!(logins.redeem(code, now_ms), expected, "{code} at {now_ms}");
        }
        logins.add_code("d".to_owned(), LoginClient::Owner, 0).unwrap();
        assert_eq!(logins.redeem("d", CODE_LIFE_MS), None);
    }

    #[test]
    fn only_so_many_codes_wait() {
        let mut logins = ConsoleLogins::default();
        for number in 0..CODES_MAX {
            logins.add_code(number.to_string(), LoginClient::Owner, 0).unwrap();
        }
        let more = || "more".to_owned();
        assert_eq!(logins.add_code(more(), LoginClient::Owner, 1), Err(TooManyCodes));
        assert_eq!(logins.add_code(more(), LoginClient::Owner, CODE_LIFE_MS), Ok(()));
    }

    #[test]
    fn a_login_ends_when_it_is_not_used() {
        let mut logins = ConsoleLogins::default();
        logins.begin(login("a", LoginClient::Owner, LOGIN_LIFE_MS), 0);
        let id = LoginId::new("a".to_owned());
        assert!(!logins.renew(&id, RENEWED_AFTER_MS - 1));
        assert!(logins.renew(&id, RENEWED_AFTER_MS));
        assert!(!logins.renew(&id, RENEWED_AFTER_MS));
        let end_ms = LOGIN_LIFE_MS + RENEWED_AFTER_MS;
        assert!(logins.find("a", end_ms - 1).is_some());
        assert!(logins.find("a", end_ms).is_none());
        assert!(!logins.renew(&id, end_ms));
        assert_eq!(ids(&ConsoleLogins::of(logins.active().to_vec(), end_ms)), [""; 0]);
        logins.end(&id);
        assert!(logins.find("a", 0).is_none());
    }

    #[test]
    fn too_many_logins_of_one_client_end_only_logins_of_that_client() {
        let mut logins = ConsoleLogins::default();
        logins.begin(login("owner", LoginClient::Owner, 1000), 0);
        for number in 0..LOGINS_PER_CLIENT_MAX {
            logins.begin(login(&format!("t{number}"), token("t"), 2000 - number as u64), 0);
        }
        let last = format!("t{}", LOGINS_PER_CLIENT_MAX - 1);
        assert!(ids(&logins).contains(&&*last));
        let displaced = logins.begin(login("next", token("t"), 3000), 0);
        assert_eq!(displaced.as_ref().map(|one| one.id.as_str()), Some(&*last));
        let left = ids(&logins);
        assert_eq!(left.len(), LOGINS_PER_CLIENT_MAX + 1);
        assert!(left.contains(&"owner") && left.contains(&"next") && !left.contains(&&*last));
        logins.undo(&LoginId::new("next".to_owned()), displaced.clone());
        assert!(!ids(&logins).contains(&"next") && ids(&logins).contains(&&*last));
        logins.undo(&LoginId::new("nothing".to_owned()), displaced);
        assert_eq!(logins.active().len(), LOGINS_PER_CLIENT_MAX + 1, "no more than the limit");
    }

    #[test]
    fn the_logins_of_all_clients_are_bounded() {
        let mut logins = ConsoleLogins::default();
        for number in 0..=LOGINS_MAX {
            let id = number.to_string();
            logins.begin(login(&id, token(&id), 1000 + number as u64), 0);
        }
        assert_eq!(logins.active().len(), LOGINS_MAX);
        assert!(!ids(&logins).contains(&"0"));
    }
}
