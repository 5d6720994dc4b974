//! Where spans go: the settings of telemetry, checked. Values may be secrets, so nothing here prints a header.

use std::fmt;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};

/// Maximum number of headers, and the maximum length of a name, a value, an endpoint and a service name.
const HEADERS_MAX: usize = 32;
const TEXT_BYTES_MAX: usize = 8192;

/// What the collector's address lacks if it ends before the path of traces.
const TRACES_PATH: &str = "v1/traces";

/// Whether a node has telemetry.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum TelemetrySetting {
    #[default]
    Off,
    On(TelemetryConfig),
    /// Why the settings cannot be used. The node runs without telemetry.
    Invalid(String),
}

/// Where the spans of a node go.
#[derive(Clone, PartialEq)]
pub struct TelemetryConfig {
    pub endpoint: Endpoint,
    /// Sent with each request. Values may be secrets.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub service_name: String,
    /// The share of sessions to record if their clients send no `traceparent`, from 0 to 1.
    pub sample: f64,
}

/// Why telemetry cannot be used as it is set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TelemetryError {
    #[error("the endpoint {0:?} is not a URL like http://127.0.0.1:4318")]
    Endpoint(String),
    #[error("the endpoint is over {TEXT_BYTES_MAX} bytes long")]
    EndpointTooLong,
    #[error("a URL with a user or a password is not supported: put the credentials into headers")]
    Credentials,
    #[error("headers are names and values: NAME=VALUE,NAME=VALUE")]
    Headers,
    #[error("the header {0:?} cannot be sent")]
    Header(String),
    #[error("more than {HEADERS_MAX} headers")]
    TooManyHeaders,
    #[error("the name of the service is empty or over {TEXT_BYTES_MAX} bytes long")]
    ServiceName,
    #[error("the share of sessions to record is a number from 0 to 1")]
    Sample,
}

/// The address of a collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub is_encrypted: bool,
    /// A name or an IP address, without brackets.
    pub host: String,
    pub port: u16,
    /// What the header `Host` says.
    pub authority: String,
    /// The path to which spans are posted.
    pub path: String,
}

impl Endpoint {
    /// Reads the address of a collector. Spans go to `v1/traces` below it, as OpenTelemetry has it.
    pub fn parse(text: &str) -> Result<Self, TelemetryError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TelemetryError::EndpointTooLong);
        }
        let invalid = || TelemetryError::Endpoint(without_secrets(text).to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let is_encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid()),
        };
        let authority = uri.authority().ok_or_else(invalid)?;
        if authority.as_str().contains('@') {
            return Err(TelemetryError::Credentials);
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let after_host = authority.as_str().strip_prefix(authority.host()).unwrap_or_default();
        let port = match after_host {
            "" | ":" if is_encrypted => 443,
            "" | ":" => 80,
            _ => authority.port_u16().ok_or_else(invalid)?,
        };
        if host.is_empty() || uri.query().is_some() || port == 0 {
            return Err(invalid());
        }
        let base = uri.path().trim_end_matches('/');
        let path = match base.ends_with(TRACES_PATH) {
            true => base.to_owned(),
            false => format!("{base}/{TRACES_PATH}"),
        };
        let (host, authority) = (host.to_owned(), authority.to_string());
        Ok(Self { is_encrypted, host, port, authority, path })
    }
}

impl TelemetryConfig {
    pub fn new(
        endpoint: &str,
        headers: impl IntoIterator<Item = (String, String)>,
        service_name: Option<String>,
        sample: Option<f64>,
    ) -> Result<Self, TelemetryError> {
        let mut checked = Vec::new();
        for (name, value) in headers {
            if checked.len() >= HEADERS_MAX {
                return Err(TelemetryError::TooManyHeaders);
            }
            checked.push(header(&name, &value)?);
        }
        let service_name = service_name.unwrap_or_else(|| "windlass".to_owned());
        if service_name.is_empty() || service_name.len() > TEXT_BYTES_MAX {
            return Err(TelemetryError::ServiceName);
        }
        let sample = sample.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&sample) {
            return Err(TelemetryError::Sample);
        }
        Ok(Self { endpoint: Endpoint::parse(endpoint)?, headers: checked, service_name, sample })
    }
}

impl fmt::Debug for TelemetryConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("TelemetryConfig")
            .field("endpoint", &self.endpoint)
            .field("headers", &names)
            .field("service_name", &self.service_name)
            .field("sample", &self.sample)
            .finish()
    }
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), TelemetryError> {
    let invalid = || TelemetryError::Header(shown_name(name).to_owned());
    if value.len() > TEXT_BYTES_MAX {
        return Err(invalid());
    }
    let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
    // The exporter sets these itself.
    if ["host", "content-length", "content-type", "transfer-encoding", "connection"]
        .contains(&known.as_str())
    {
        return Err(invalid());
    }
    let mut value = HeaderValue::from_str(value).map_err(|_| invalid())?;
    value.set_sensitive(true);
    Ok((known, value))
}

/// Reads `OTEL_EXPORTER_OTLP_HEADERS`: names and values as in the header `baggage`, with values in percent encoding.
pub fn parse_headers(text: &str) -> Result<Vec<(String, String)>, TelemetryError> {
    let mut headers = Vec::new();
    for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let (name, value) = one.split_once('=').ok_or(TelemetryError::Headers)?;
        let value = percent_encoding::percent_decode_str(value.trim())
            .decode_utf8()
            .map_err(|_| TelemetryError::Headers)?;
        headers.push((name.trim().to_owned(), value.into_owned()));
    }
    Ok(headers)
}

/// Maximum length of the name of a header in an error.
const SHOWN_BYTES_MAX: usize = 80;

/// The part of a header's name that can be a name. `name: value` in place of `name=value` makes the value a part of the
/// name.
fn shown_name(name: &str) -> &str {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let end = name.bytes().take(SHOWN_BYTES_MAX).take_while(|byte| is_of_name(*byte)).count();
    name.get(..end).unwrap_or_default()
}

/// A URL without what is before its host, which may be a password, and without its query, which may be a key. Empty if a
/// password with `?` and a query with `@` look the same.
fn without_secrets(text: &str) -> &str {
    let start = text.rfind('@').map_or(0, |at| at + 1);
    let end = text.find(['?', '#']).unwrap_or(text.len());
    text.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_collector_is_read() {
        for (text, expected) in [
            ("http://127.0.0.1:4318", Some("http 127.0.0.1 4318 /v1/traces")),
            ("http://127.0.0.1:4318/", Some("http 127.0.0.1 4318 /v1/traces")),
            ("https://otlp.example.org", Some("https otlp.example.org 443 /v1/traces")),
            ("https://example.org/otlp/", Some("https example.org 443 /otlp/v1/traces")),
            ("http://localhost/v1/traces", Some("http localhost 80 /v1/traces")),
            ("http://[::1]:4318", Some("http ::1 4318 /v1/traces")),
            ("grpc://127.0.0.1:4317", None),
            ("127.0.0.1:4318", None),
            ("localhost", None),
            ("http://", None),
            ("http://example org", None),
            ("http://127.0.0.1:0", None),
            ("http://127.0.0.1:99999", None),
            ("http://127.0.0.1:4318?key=1", None),
            ("", None),
        ] {
            let found = Endpoint::parse(text).ok().map(|endpoint| {
                let scheme = if endpoint.is_encrypted { "https" } else { "http" };
                format!("{scheme} {} {} {}", endpoint.host, endpoint.port, endpoint.path)
            });
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn no_error_and_no_debug_text_shows_a_secret() {
        let error = Endpoint::parse("http://example:secret@example.org").unwrap_err();
        assert_eq!(error, TelemetryError::Credentials);
        let error = Endpoint::parse("ftp://user:secret@example.org").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        for (text, shown) in [
            ("http://127.0.0.1:4318?key=secret", "http://127.0.0.1:4318"),
            ("http://127.0.0.1:0#secret", "http://127.0.0.1:0"),
            ("ftp://user:secret@example.org?key=secret", "example.org"),
            ("ftp://example.org?key=a@secret", ""),
            ("ftp://user:se?cret@example.org", ""),
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert_eq!(error, TelemetryError::Endpoint(shown.to_owned()), "{text}");
        }
        for (text, shown) in [
            ("authorization: Basic secret==", "authorization"),
            ("authorization:secret=1", "authorization"),
            ("x key secret=1", "x"),
            ("é secret=1", ""),
            ("Host=secret", "Host"),
        ] {
            let headers = parse_headers(text).unwrap();
            let error =
                TelemetryConfig::new("http://localhost:4318", headers, None, None).unwrap_err();
            assert_eq!(error, TelemetryError::Header(shown.to_owned()), "{text}");
        }
        let headers = [("authorization".to_owned(), "Bearer secret".to_owned())];
        let config = TelemetryConfig::new("http://localhost:4318", headers, None, None).unwrap();
        let shown = format!("{config:?}");
        assert!(!shown.contains("secret") && shown.contains("authorization"), "{shown}");
    }

    #[test]
    fn headers_are_read_as_the_standard_has_them() {
        for (text, expected) in [
            ("a=b", Some(vec![("a", "b")])),
            ("a=b, c = d%20e ,", Some(vec![("a", "b"), ("c", "d e")])),
            ("authorization=Bearer%20x==", Some(vec![("authorization", "Bearer x==")])),
            ("", Some(vec![])),
            ("a", None),
            ("a=%ff", None),
        ] {
            let found = parse_headers(text).ok();
            let expected = expected.map(|all| {
                let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
                all.into_iter().map(own).collect::<Vec<_>>()
            });
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn values_that_cannot_be_used_are_refused() {
        let with = |name: &str, value: &str| {
            let headers = [(name.to_owned(), value.to_owned())];
            TelemetryConfig::new("http://localhost:4318", headers, None, None).is_ok()
        };
        for (name, value, expected) in [
            ("x-key", "1", true),
            ("x key", "1", false),
            ("x-key", "1\r\nhost: other", false),
            ("Host", "other", false),
            ("", "1", false),
        ] {
            assert_eq!(with(name, value), expected, "{name:?} {value:?}");
        }
        for (sample, expected) in
            [(0.0, true), (0.25, true), (1.0, true), (1.1, false), (-0.1, false), (f64::NAN, false)]
        {
            let config = TelemetryConfig::new("http://localhost", [], None, Some(sample));
            assert_eq!(config.is_ok(), expected, "{sample}");
        }
    }
}
