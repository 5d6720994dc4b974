//! Puts secrets into the head of a request, and refuses a request that carries a placeholder where no rule sends the
//! secret. Pure.

use base64::Engine;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hyper::Uri;
use hyper::header::{ACCEPT_ENCODING, HeaderName, HeaderValue, IF_RANGE, RANGE};
use hyper::http::request::Parts;
use hyper::http::uri::PathAndQuery;
use memchr::memmem;
use percent_encoding::{percent_decode_str, utf8_percent_encode};
use windlass_protocol::policy::{
    BodyPlaceholder, PLACEHOLDER_END, PLACEHOLDER_START, SECRET_IN_TEMPLATE, SECRET_NAME_CHARS_MAX,
    SecretPosition, SecretRule,
};

use super::value::{QUERY, SecretValue};
use super::{Origin, RequestSecrets};
use crate::rules::RefusalReason;

/// Maximum bytes of a placeholder.
pub(super) const PLACEHOLDER_BYTES_MAX: usize =
    PLACEHOLDER_START.len() + SECRET_NAME_CHARS_MAX + PLACEHOLDER_END.len();

/// The scheme of basic authentication in a header.
const BASIC: &str = "Basic";

/// Reads base64 with and without padding: servers do.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Other names by which some servers take a range of bytes.
const REQUEST_RANGE: HeaderName = HeaderName::from_static("request-range");
const MS_RANGE: HeaderName = HeaderName::from_static("x-ms-range");

/// Headers by which some servers take another path or method than the request line's.
const OVERRIDES: [HeaderName; 5] = [
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];

impl RequestSecrets<'_> {
    /// Puts secrets into the head of a request to `origin`. A request to a host that may know a secret also asks for a
    /// response that can be redacted: whole, and not compressed. Returns what to do with a placeholder in the body.
    pub(crate) fn screen(
        &self,
        head: &mut Parts,
        origin: &Origin<'_>,
    ) -> Result<BodyPlaceholder, RefusalReason> {
        let (method, path) = (head.method.as_str(), head.uri.path());
        let matching: Vec<&SecretRule> = self
            .rules
            .rules
            .iter()
            .filter(|rule| rule.matches(origin.scheme, origin.host, origin.port, method, path))
            .collect();
        if has_placeholder_elsewhere(head, &matching) {
            return Err(RefusalReason::SecretPlaceholder);
        }
        for rule in &matching {
            Insertion { rule, origin, secrets: self }.put(head)?;
            if rule.is_narrow() {
                for name in &OVERRIDES {
                    head.headers.remove(name);
                }
            }
        }
        if self.session.guards(origin.host, origin.port) {
            head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            for partial in [RANGE, IF_RANGE, REQUEST_RANGE, MS_RANGE] {
                head.headers.remove(partial);
            }
        }
        let passes = |rule: &&SecretRule| rule.body == BodyPlaceholder::Pass;
        Ok(if matching.iter().any(passes) {
            BodyPlaceholder::Pass
        } else {
            BodyPlaceholder::Refuse
        })
    }
}

/// One rule that matches a request.
struct Insertion<'r> {
    rule: &'r SecretRule,
    origin: &'r Origin<'r>,
    secrets: &'r RequestSecrets<'r>,
}

impl Insertion<'_> {
    /// Puts the value in place of the placeholder, or into a request without the header or the parameter.
    fn put(&self, head: &mut Parts) -> Result<(), RefusalReason> {
        match self.rule.position() {
            SecretPosition::Header(name) => {
                let Ok(name) = HeaderName::try_from(name) else {
                    return Err(RefusalReason::SecretPlaceholder);
                };
                if !head.headers.contains_key(&name) {
                    let added = self.added()?;
                    head.headers.insert(name, sensitive(&added)?);
                    return Ok(());
                }
                let replaced = |sent: &HeaderValue| match self.with_value(sent)? {
                    Some(text) => sensitive(&text),
                    None => Ok(sent.clone()),
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
                    true => self.with_value_in_query(sent, name)?,
                    false => {
                        let added = self.added()?;
                        let added = format!("{name}={}", utf8_percent_encode(&added, QUERY));
                        if sent.is_empty() { added } else { format!("{sent}&{added}") }
                    }
                };
                head.uri = with_query(&head.uri, &query)?;
            }
        }
        Ok(())
    }

    fn value(&self) -> Result<std::sync::Arc<SecretValue>, RefusalReason> {
        self.secrets.value_for(self.rule, self.origin)
    }

    /// The text of a header or parameter that the proxy adds.
    fn added(&self) -> Result<String, RefusalReason> {
        let value = self.value()?;
        Ok(match &self.rule.basic_user {
            Some(user) => {
                format!("{BASIC} {}", STANDARD.encode(format!("{user}:{}", value.text())))
            }
            None => self.rule.template().replace(SECRET_IN_TEMPLATE, value.text()),
        })
    }

    /// A header's text with the value in place of the placeholder. `None` if it has no placeholder.
    fn with_value(&self, sent: &HeaderValue) -> Result<Option<String>, RefusalReason> {
        let placeholder = self.rule.name.placeholder();
        if let Some(pair) = decoded_basic(sent).filter(|pair| pair.contains(&placeholder)) {
            let pair = pair.replace(&placeholder, self.value()?.text());
            return Ok(Some(format!("{BASIC} {}", STANDARD.encode(pair))));
        }
        match sent.to_str() {
            Ok(text) if text.contains(&placeholder) => {
                Ok(Some(text.replace(&placeholder, self.value()?.text())))
            }
            _ => Ok(None),
        }
    }

    fn with_value_in_query(&self, sent: &str, name: &str) -> Result<String, RefusalReason> {
        let placeholder = self.rule.name.placeholder();
        let replaced = sent.split('&').map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = decoded(value);
            if !is_key(key, name) || !text.contains(&placeholder) {
                return Ok(pair.to_owned());
            }
            let text = text.replace(&placeholder, self.value()?.text());
            Ok(format!("{key}={}", utf8_percent_encode(&text, QUERY)))
        });
        Ok(replaced.collect::<Result<Vec<_>, _>>()?.join("&"))
    }
}

/// Whether the head has a placeholder where none of the matching rules sends its secret.
fn has_placeholder_elsewhere(head: &Parts, matching: &[&SecretRule]) -> bool {
    // A text without the placeholders of the rules for this position.
    let without = |text: String, is_there: &dyn Fn(SecretPosition<'_>) -> bool| {
        let rules = matching.iter().filter(|rule| is_there(rule.position()));
        rules.fold(text, |text, rule| text.replace(&rule.name.placeholder(), ""))
    };
    let in_header = |(name, value): (&HeaderName, &HeaderValue)| {
        let is_there = |position: SecretPosition<'_>| match position {
            SecretPosition::Header(header) => name.as_str().eq_ignore_ascii_case(header),
            SecretPosition::Query(_) => false,
        };
        let texts = std::iter::once(lossy(value.as_bytes())).chain(decoded_basic(value));
        has_placeholder(name.as_str())
            || texts.map(|text| without(text, &is_there)).any(|text| has_placeholder(&text))
    };
    let in_pair = |(key, value): (&str, &str)| {
        let is_there = |position: SecretPosition<'_>| match position {
            SecretPosition::Query(query) => is_key(key, query),
            SecretPosition::Header(_) => false,
        };
        has_placeholder(&decoded(key))
            || has_placeholder(&without(value.to_owned(), &is_there))
            || has_placeholder(&without(decoded(value), &is_there))
    };
    let path = head.uri.path();
    has_placeholder(head.method.as_str())
        || has_placeholder(path)
        || has_placeholder(&decoded(path))
        || head.headers.iter().any(in_header)
        || pairs(head.uri.query().unwrap_or_default()).any(in_pair)
}

/// The user and password of basic authentication.
fn decoded_basic(sent: &HeaderValue) -> Option<String> {
    let text = lossy(sent.as_bytes());
    let (scheme, coded) = text.split_at_checked(BASIC.len())?;
    if !scheme.eq_ignore_ascii_case(BASIC) || !coded.starts_with([' ', '\t']) {
        return None;
    }
    let standard: String = coded
        .chars()
        .filter(|digit| !digit.is_ascii_whitespace())
        .map(|digit| match digit {
            '-' => '+',
            '_' => '/',
            other => other,
        })
        .collect();
    Some(lossy(&LENIENT.decode(standard).ok()?))
}

/// A header value that is never printed.
fn sensitive(text: &str) -> Result<HeaderValue, RefusalReason> {
    let mut value = HeaderValue::try_from(text).map_err(|_| RefusalReason::SecretPlaceholder)?;
    value.set_sensitive(true);
    Ok(value)
}

fn with_query(uri: &Uri, query: &str) -> Result<Uri, RefusalReason> {
    let text = format!("{}?{query}", uri.path());
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

/// Whether a text contains a placeholder of any secret.
fn has_placeholder(text: &str) -> bool {
    placeholder_in(text.as_bytes())
}

/// Whether the bytes contain a placeholder of any secret.
pub(super) fn placeholder_in(bytes: &[u8]) -> bool {
    memmem::find_iter(bytes, PLACEHOLDER_START).any(|at| {
        let rest = &bytes[at + PLACEHOLDER_START.len()..];
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let name = rest.iter().take(SECRET_NAME_CHARS_MAX).take_while(|byte| is_word(byte)).count();
        name > 0 && rest[name..].starts_with(PLACEHOLDER_END.as_bytes())
    })
}

#[cfg(test)]
mod tests;
