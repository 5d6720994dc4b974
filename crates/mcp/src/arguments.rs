//! The argument types of the tools. Their descriptions for the model are in `schema`.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::fault::Fault;

/// Default number of seconds that a call waits for its turn. It is below the shortest timeout that
/// a client has for a tool.
const WAIT_SECONDS_DEFAULT: f64 = 45.0;

const WAIT_SECONDS_MAX: f64 = 600.0;

/// Limits for the output in a reply, in tokens, and the number of bytes per token.
const TOKENS_DEFAULT: usize = 6_000;
const TOKENS_MAX: usize = 100_000;
const TOKENS_MIN: usize = 50;
const BYTES_PER_TOKEN: usize = 4;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunArguments {
    pub code: String,
    #[serde(default)]
    pub language: Option<String>,
    #[serde(default)]
    pub packages: Vec<String>,
    #[serde(default)]
    pub session: Option<String>,
    #[serde(default)]
    pub wait_seconds: Option<f64>,
    #[serde(default)]
    pub max_tokens: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContinueArguments {
    #[serde(default)]
    pub session: Option<String>,
    #[serde(default)]
    pub turn: Option<String>,
    #[serde(default)]
    pub input: Option<String>,
    #[serde(default)]
    pub from: Option<u64>,
    #[serde(default)]
    pub wait_seconds: Option<f64>,
    #[serde(default)]
    pub max_tokens: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InterruptArguments {
    #[serde(default)]
    pub session: Option<String>,
    #[serde(default)]
    pub from: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResetArguments {
    #[serde(default)]
    pub session: Option<String>,
    #[serde(default)]
    pub end: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionsArguments {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadOutputArguments {
    #[serde(default)]
    pub session: Option<String>,
    #[serde(default)]
    pub turn: Option<String>,
    #[serde(default)]
    pub from: Option<u64>,
    #[serde(default)]
    pub tail: Option<u64>,
    #[serde(default)]
    pub search: Option<String>,
    #[serde(default)]
    pub max_tokens: Option<usize>,
}

/// Parses the arguments as `T`. The error tells the model what to correct.
pub(crate) fn read<T: DeserializeOwned>(arguments: Option<Map<String, Value>>) -> Result<T, Fault> {
    serde_json::from_value(Value::Object(arguments.unwrap_or_default()))
        .map_err(|error| Fault::Arguments(error.to_string()))
}

pub(crate) fn wait_ms(seconds: Option<f64>) -> u64 {
    let seconds = seconds.filter(|seconds| seconds.is_finite()).unwrap_or(WAIT_SECONDS_DEFAULT);
    std::time::Duration::from_secs_f64(seconds.clamp(0.0, WAIT_SECONDS_MAX)).as_millis() as u64
}

/// How many bytes of output a reply may hold.
pub(crate) fn output_bytes(tokens: Option<usize>) -> usize {
    tokens.unwrap_or(TOKENS_DEFAULT).clamp(TOKENS_MIN, TOKENS_MAX) * BYTES_PER_TOKEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_bounded() {
        assert_eq!(wait_ms(None), 45_000);
        assert_eq!(wait_ms(Some(0.25)), 250);
        assert_eq!(wait_ms(Some(-1.0)), 0);
        assert_eq!(wait_ms(Some(1e9)), 600_000);
        assert_eq!(wait_ms(Some(f64::NAN)), 45_000);
    }

    #[test]
    fn a_wrong_argument_is_named() {
        let arguments = serde_json::json!({"code": "1", "sesion": "a"});
        let error = read::<RunArguments>(arguments.as_object().cloned()).unwrap_err().to_string();
        assert!(error.contains("sesion") && error.contains("session"), "{error}");
    }
}
