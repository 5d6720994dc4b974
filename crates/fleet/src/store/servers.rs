//! The servers of the store, as their URLs name them. NATS' client library ignores the user and the password of a URL,
//! so this module takes them out of the URLs: every server gets them, also one that another server has told of.

use std::fmt;

use async_nats::{ConnectOptions, ServerAddr};
use percent_encoding::percent_decode_str;
use windlass_protocol::enrolment::without_password;

/// Why the URLs of the servers cannot be used. No message repeats a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    #[error("{url:?} is not the URL of a server, such as nats://10.0.0.1:4222 or tls://HOST:PORT")]
    Form { url: String },
    #[error(
        "the URLs of the store's servers have different users or passwords; write the same ones in all of them"
    )]
    Logins,
}

/// Where the servers are, and what the node shows them.
#[derive(Debug)]
pub(super) struct StoreServers {
    /// Without user and password.
    pub addresses: Vec<ServerAddr>,
    login: Option<StoreLogin>,
    tls: bool,
}

#[derive(Clone, PartialEq, Eq)]
enum StoreLogin {
    Password {
        user: String,
        password: String,
    },
    /// What a URL carries before its host if there is no colon in it.
    Token(String),
}

impl StoreServers {
    pub fn parse(urls: &[String]) -> Result<Self, ServerUrlError> {
        let mut servers = Self { addresses: Vec::new(), login: None, tls: false };
        for url in urls {
            let form = || ServerUrlError::Form { url: without_password(url) };
            let address: ServerAddr = url.parse().map_err(|_| form())?;
            let login = StoreLogin::of(&address).map_err(|_| form())?;
            match (&servers.login, login) {
                (Some(known), Some(login)) if *known != login => {
                    return Err(ServerUrlError::Logins);
                }
                (_, Some(login)) => servers.login = Some(login),
                (_, None) => {}
            }
            servers.tls |= address.tls_required();
            servers.addresses.push(without_login(address).ok_or_else(form)?);
        }
        Ok(servers)
    }

    /// Sets what holds for the connection to each server. One `tls://` encrypts all connections: an address that a
    /// server has told of does not say whether it needs TLS, and must not get the password without it.
    pub fn apply(&self, options: ConnectOptions) -> ConnectOptions {
        let options = if self.tls { options.require_tls(true) } else { options };
        match self.login.clone() {
            None => options,
            Some(StoreLogin::Password { user, password }) => {
                options.user_and_password(user, password)
            }
            Some(StoreLogin::Token(token)) => options.token(token),
        }
    }
}

impl StoreLogin {
    fn of(address: &ServerAddr) -> Result<Option<Self>, std::str::Utf8Error> {
        let login = match (address.username(), address.password()) {
            (None, None) => None,
            (Some(token), None) => Some(Self::Token(decoded(token)?)),
            (user, Some(password)) => Some(Self::Password {
                user: decoded(user.unwrap_or_default())?,
                password: decoded(password)?,
            }),
        };
        Ok(login)
    }
}

impl fmt::Debug for StoreLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreLogin").finish_non_exhaustive()
    }
}

fn decoded(text: &str) -> Result<String, std::str::Utf8Error> {
    Ok(percent_decode_str(text).decode_utf8()?.into_owned())
}

fn without_login(address: ServerAddr) -> Option<ServerAddr> {
    let mut url = address.into_inner();
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    ServerAddr::from_url(url).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(urls: &[&str]) -> Result<StoreServers, ServerUrlError> {
        let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
        StoreServers::parse(&urls)
    }

    fn password(user: &str, password: &str) -> Option<StoreLogin> {
        Some(StoreLogin::Password { user: user.to_owned(), password: password.to_owned() })
    }

    #[test]
    fn all_servers_get_the_user_and_the_password_of_the_urls() {
        let cases: [(&[&str], Option<StoreLogin>, bool); 6] = [
            (&["nats://127.0.0.1:4222"], None, false),
            (&["nats://me:key@127.0.0.1:4222"], password("me", "key"), false),
            (&["nats://me:k%40y%2F@a.example", "nats://b.example"], password("me", "k@y/"), false),
            (&["nats://b.example", "nats://me:key@a.example"], password("me", "key"), false),
            (&["tls://me:key@a.example", "nats://me:key@b.example"], password("me", "key"), true),
            (&["nats://secret@a.example"], Some(StoreLogin::Token("secret".to_owned())), false),
        ];
        for (urls, login, tls) in cases {
            let servers = parse(urls).unwrap();
            assert!(servers.login == login && servers.tls == tls, "{urls:?}");
            assert_eq!(servers.addresses.len(), urls.len());
            for (address, url) in servers.addresses.iter().zip(urls) {
                let shown = format!("{address:?}");
                assert!(!shown.contains("key") && !shown.contains("secret"), "{shown}");
                assert!(url.contains(address.host()), "{url}");
            }
            assert!(!format!("{servers:?}").contains("key"), "{servers:?}");
        }
        let servers = parse(&["nats://u:p@h:1", "nats://h"]).unwrap();
        let ports: Vec<u16> = servers.addresses.iter().map(ServerAddr::port).collect();
        assert_eq!(ports, [1, 4222]);
    }

    #[test]
    fn urls_that_contradict_each_other_are_refused_without_a_password_in_the_message() {
        let other = parse(&["nats://me:key@a.example", "nats://me:yek@b.example"]).unwrap_err();
        assert_eq!(other, ServerUrlError::Logins);
        for url in ["nats://me:key@", "ftp://me:key@a.example", "nats://me:key@a:b:c"] {
            let error = parse(&[url]).unwrap_err();
            assert!(matches!(error, ServerUrlError::Form { .. }), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("key"), "{error:?}");
        }
    }
}
