//! Puts secrets into the head of a request, and refuses a request that carries a placeholder where no rule sends the
//! secret. Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{ACCEPT_ENCODING, HeaderMap, HeaderName, HeaderValue, IF_RANGE, RANGE};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use hyper::{Uri, header};
use memchr::memmem;
use percent_encoding::{percent_decode_str, utf8_percent_encode};
use windlass_protocol::policy::{
    BodyPlaceholder, PLACEHOLDER_END, PLACEHOLDER_START, SECRET_IN_TEMPLATE, SECRET_NAME_CHARS_MAX,
    SecretPosition, SecretRule,
};

use super::value::{QUERY, SecretValue};
use super::{Origin, SessionSecrets};
use crate::rules::RefusalReason;

/// Maximum bytes of a placeholder.
pub(super) const PLACEHOLDER_BYTES_MAX: usize =
    PLACEHOLDER_START.len() + SECRET_NAME_CHARS_MAX + PLACEHOLDER_END.len();

/// The scheme of basic authentication in a header.
const BASIC: &str = "Basic ";

/// How the rest of a request is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Screened {
    pub body: BodyPlaceholder,
}

impl SessionSecrets {
    /// Puts secrets into the head of a request to `origin`. A request to an origin that may know a secret also asks
    /// for a response that can be redacted: whole, and not compressed.
    pub(crate) fn screen(
        &self,
        head: &mut Parts,
        origin: &Origin<'_>,
    ) -> Result<Screened, RefusalReason> {
        let rules = self.rules();
        let (method, path) = (head.method.as_str().to_owned(), head.uri.path().to_owned());
        let matching = |rule: &&SecretRule| {
            rule.matches(origin.scheme, origin.host, origin.port, &method, &path)
        };
        let mut body = BodyPlaceholder::Refuse;
        // What the code sent is looked at before a value is put in: a value could look like a placeholder.
        let mut rest = head.headers.clone();
        let mut rest_uri = head.uri.clone();
        for rule in rules.iter().filter(matching) {
            let insertion = Insertion { rule, source: self };
            insertion.blank(&mut rest, &mut rest_uri);
            insertion.put(head)?;
            if rule.body == BodyPlaceholder::Pass {
                body = BodyPlaceholder::Pass;
            }
        }
        if has_placeholder_in_head(&rest, &rest_uri) {
            return Err(RefusalReason::SecretPlaceholder);
        }
        if self.names(origin) {
            head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            for partial in [RANGE, IF_RANGE, header::SEC_WEBSOCKET_EXTENSIONS] {
                head.headers.remove(partial);
            }
        }
        Ok(Screened { body })
    }
}

/// One rule that matches a request.
struct Insertion<'r> {
    rule: &'r SecretRule,
    source: &'r SessionSecrets,
}

impl Insertion<'_> {
    /// Puts the value in place of the placeholder, or into a request without the header or the parameter.
    fn put(&self, head: &mut Parts) -> Result<(), RefusalReason> {
        let placeholder = self.rule.name.placeholder();
        match self.rule.position() {
            SecretPosition::Header(name) => {
                let Ok(name) = HeaderName::try_from(name) else {
                    return Err(RefusalReason::SecretPlaceholder);
                };
                if !head.headers.contains_key(&name) {
                    head.headers.insert(name, sensitive(&self.added(&*self.value()?))?);
                    return Ok(());
                }
                let replaced = |sent: &HeaderValue| -> Result<HeaderValue, RefusalReason> {
                    match with_value(sent, &placeholder, || self.value())? {
                        Some(text) => sensitive(&text),
                        None => Ok(sent.clone()),
                    }
                };
                let values: Vec<_> =
                    head.headers.get_all(&name).iter().map(replaced).collect::<Result<_, _>>()?;
                head.headers.remove(&name);
                for value in values {
                    head.headers.append(&name, value);
                }
            }
            SecretPosition::Query(name) => {
                let sent = head.uri.query().unwrap_or_default();
                let query = match pairs(sent).any(|(key, _)| is_key(key, name)) {
                    true => self.with_value_in_query(sent, name, &placeholder)?,
                    false => {
                        let added = self.added(&*self.value()?);
                        let added = format!("{name}={}", utf8_percent_encode(&added, QUERY));
                        if sent.is_empty() { added } else { format!("{sent}&{added}") }
                    }
                };
                head.uri = with_query(&head.uri, &query)?;
            }
        }
        Ok(())
    }

    /// Removes the placeholder from where the rule allows it.
    fn blank(&self, headers: &mut HeaderMap, uri: &mut Uri) {
        let placeholder = self.rule.name.placeholder();
        match self.rule.position() {
            SecretPosition::Header(name) => {
                let Ok(name) = HeaderName::try_from(name) else { return };
                let blanked: Vec<HeaderValue> = headers
                    .get_all(&name)
                    .iter()
                    .map(|sent| {
                        let decoded = decoded_basic(sent);
                        let text = decoded.unwrap_or_else(|| lossy(sent.as_bytes()));
                        let text = text.replace(&placeholder, "");
                        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
                    })
                    .collect();
                headers.remove(&name);
                for value in blanked {
                    headers.append(&name, value);
                }
            }
            SecretPosition::Query(name) => {
                let Some(sent) = uri.query() else { return };
                let others = pairs(sent).map(|(key, value)| {
                    let value = if is_key(key, name) {
                        decoded(value).replace(&placeholder, "")
                    } else {
                        value.to_owned()
                    };
                    format!("{key}={}", utf8_percent_encode(&value, QUERY))
                });
                let others = others.collect::<Vec<_>>().join("&");
                if let Ok(blanked) = with_query(uri, &others) {
                    *uri = blanked;
                }
            }
        }
    }

    fn value(&self) -> Result<std::sync::Arc<SecretValue>, RefusalReason> {
        self.source.source.value(&self.rule.name).ok_or(RefusalReason::SecretMissing)
    }

    /// The text of a header or parameter that the proxy adds.
    fn added(&self, value: &SecretValue) -> String {
        match &self.rule.basic_user {
            Some(user) => {
                format!("{BASIC}{}", STANDARD.encode(format!("{user}:{}", value.text())))
            }
            None => self.rule.template().replace(SECRET_IN_TEMPLATE, value.text()),
        }
    }

    fn with_value_in_query(
        &self,
        sent: &str,
        name: &str,
        placeholder: &str,
    ) -> Result<String, RefusalReason> {
        let replaced = pairs(sent).map(|(key, value)| {
            let text = decoded(value);
            if !is_key(key, name) || !text.contains(placeholder) {
                return Ok(if value.is_empty() {
                    key.to_owned()
                } else {
                    format!("{key}={value}")
                });
            }
            let text = text.replace(placeholder, self.value()?.text());
            Ok(format!("{key}={}", utf8_percent_encode(&text, QUERY)))
        });
        Ok(replaced.collect::<Result<Vec<_>, _>>()?.join("&"))
    }
}

/// A header's text with the value in place of the placeholder. `None` if it has no placeholder.
fn with_value(
    sent: &HeaderValue,
    placeholder: &str,
    value: impl Fn() -> Result<std::sync::Arc<SecretValue>, RefusalReason>,
) -> Result<Option<String>, RefusalReason> {
    if let Some(pair) = decoded_basic(sent).filter(|pair| pair.contains(placeholder)) {
        let pair = pair.replace(placeholder, value()?.text());
        return Ok(Some(format!("{BASIC}{}", STANDARD.encode(pair))));
    }
    match sent.to_str() {
        Ok(text) if text.contains(placeholder) => {
            Ok(Some(text.replace(placeholder, value()?.text())))
        }
        _ => Ok(None),
    }
}

/// The user and password of basic authentication.
fn decoded_basic(sent: &HeaderValue) -> Option<String> {
    let text = sent.to_str().ok()?;
    let (scheme, coded) = text.split_at_checked(BASIC.len())?;
    if !scheme.eq_ignore_ascii_case(BASIC) {
        return None;
    }
    String::from_utf8(STANDARD.decode(coded.trim()).ok()?).ok()
}

/// A header value that is never printed.
fn sensitive(text: &str) -> Result<HeaderValue, RefusalReason> {
    let mut value = HeaderValue::try_from(text).map_err(|_| RefusalReason::SecretPlaceholder)?;
    value.set_sensitive(true);
    Ok(value)
}

fn with_query(uri: &Uri, query: &str) -> Result<Uri, RefusalReason> {
    let path = uri.path();
    let text = if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") };
    let path = PathAndQuery::try_from(text).map_err(|_| RefusalReason::SecretPlaceholder)?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(path);
    Uri::from_parts(parts).map_err(|_| RefusalReason::SecretPlaceholder)
}

/// The parameters of a query, as they were sent.
fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn is_key(sent: &str, name: &str) -> bool {
    decoded(sent) == name
}

fn decoded(text: &str) -> String {
    lossy(&percent_decode_str(text).collect::<Vec<_>>())
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn has_placeholder_in_head(headers: &HeaderMap, uri: &Uri) -> bool {
    let uri = uri.to_string();
    let in_header = |(name, value): (&HeaderName, &HeaderValue)| {
        has_placeholder(name.as_str().as_bytes())
            || has_placeholder(value.as_bytes())
            || decoded_basic(value).is_some_and(|pair| has_placeholder(pair.as_bytes()))
    };
    has_placeholder(uri.as_bytes())
        || has_placeholder(decoded(&uri).as_bytes())
        || headers.iter().any(in_header)
}

/// Whether the bytes contain a placeholder of any secret.
pub(super) fn has_placeholder(bytes: &[u8]) -> bool {
    memmem::find_iter(bytes, PLACEHOLDER_START).any(|at| {
        let rest = &bytes[at + PLACEHOLDER_START.len()..];
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let name = rest.iter().take(SECRET_NAME_CHARS_MAX).take_while(|byte| is_word(byte)).count();
        name > 0 && rest[name..].starts_with(PLACEHOLDER_END.as_bytes())
    })
}

#[cfg(test)]
mod tests;
