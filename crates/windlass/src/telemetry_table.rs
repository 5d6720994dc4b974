//! The table `[telemetry]` of `config.toml`: its keys, what is wrong in it, and where spans go by the table and the
//! variables of OpenTelemetry. A variable wins over the file. Values of headers may be secrets and are never shown.

use std::collections::BTreeMap;
use std::ffi::OsString;

use toml_edit::{Document, Item, TableLike, Value};
use windlass_node::{TelemetryConfig, TelemetryError, TelemetrySetting, parse_headers};

/// The variables of OpenTelemetry that the node reads.
const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const HEADERS_VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const SERVICE_VARIABLE: &str = "OTEL_SERVICE_NAME";

/// Stands for the endpoint when the other keys are checked.
const ANY_ENDPOINT: &str = "http://localhost:4318";

/// A key of `[telemetry]`.
#[derive(Debug, Clone, Copy)]
pub struct TelemetryKey {
    pub key: &'static str,
    /// What a value is, for people.
    pub value: &'static str,
    pub default: &'static str,
    /// The variable that sets the same; empty for none.
    pub variable: &'static str,
    pub meaning: &'static str,
}

/// Every key of `[telemetry]`.
pub const TELEMETRY_KEYS: [TelemetryKey; 4] = [
    TelemetryKey {
        key: "endpoint",
        value: "a URL: `\"http://127.0.0.1:4318\"`",
        default: "",
        variable: ENDPOINT_VARIABLE,
        meaning: "the collector that gets spans by OTLP over HTTP, at `v1/traces` below the URL. Without it no spans are made",
    },
    TelemetryKey {
        key: "headers",
        value: "names and values: `{ authorization = \"Bearer TOKEN\" }`",
        default: "none",
        variable: HEADERS_VARIABLE,
        meaning: "headers of each request to the `endpoint` of the file. The file must then be private to you",
    },
    TelemetryKey {
        key: "service_name",
        value: "text",
        default: "windlass",
        variable: SERVICE_VARIABLE,
        meaning: "the name of the service in the spans",
    },
    TelemetryKey {
        key: "sample",
        value: "a number from 0 to 1",
        default: "1",
        variable: "",
        meaning: "the share of sessions of which spans are made, if the client sends no `traceparent`",
    },
];

/// What the table sets.
#[derive(Clone, Default, PartialEq)]
pub struct TelemetryTable {
    pub endpoint: Option<String>,
    headers: BTreeMap<String, String>,
    service_name: Option<String>,
    sample: Option<f64>,
}

impl std::fmt::Debug for TelemetryTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TelemetryTable")
            .field("endpoint", &self.endpoint)
            .field("headers", &self.headers.keys())
            .field("service_name", &self.service_name)
            .field("sample", &self.sample)
            .finish()
    }
}

/// What is wrong in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryTableProblem {
    /// Absent: the table itself.
    pub key: Option<&'static str>,
    pub what: String,
    pub remedy: String,
}

/// The table of a file that has no problem.
pub fn of(text: &str) -> TelemetryTable {
    let document = Document::parse(text).ok();
    let item = document.as_ref().and_then(|document| document.get("telemetry"));
    let table = item.and_then(Item::as_table_like);
    table.and_then(|table| TelemetryTable::read(table).ok()).unwrap_or_default()
}

/// Everything that is wrong in the table. The caller looks for unknown keys.
pub fn check(item: &Item) -> Vec<TelemetryTableProblem> {
    let Some(table) = item.as_table_like() else {
        let what = "`telemetry` is not a table".to_owned();
        let remedy = "begin a table with [telemetry]".to_owned();
        return vec![TelemetryTableProblem { key: None, what, remedy }];
    };
    TelemetryTable::read(table).err().unwrap_or_default()
}

/// Where spans go. `is_private` says whether only the user can read the file.
pub fn setting(
    table: TelemetryTable,
    is_private: bool,
    variable: impl Fn(&str) -> Option<OsString>,
) -> TelemetrySetting {
    let set = |name: &str| -> Result<Option<String>, String> {
        let value = variable(name).filter(|value| !value.is_empty());
        let text =
            value.map(|value| value.into_string().map_err(|_| format!("{name} is not UTF-8")));
        text.transpose()
    };
    let made = || -> Result<Option<TelemetryConfig>, String> {
        let mut headers: Vec<(String, String)> = match set(HEADERS_VARIABLE)? {
            Some(text) => parse_headers(&text)
                .map_err(|error| format!("{HEADERS_VARIABLE} cannot be used: {error}"))?,
            None => Vec::new(),
        };
        let endpoint = match (set(ENDPOINT_VARIABLE)?, table.endpoint.clone()) {
            // The headers of the file are for the collector of the file.
            (Some(endpoint), _) => endpoint,
            (None, Some(endpoint)) => {
                if !table.headers.is_empty() && !is_private {
                    return Err(
                        "`headers` of [telemetry] are in a file that others can read; run: \
                                chmod 600 on config.toml"
                            .to_owned(),
                    );
                }
                let has = |name: &String, all: &[(String, String)]| {
                    all.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
                };
                for (name, value) in &table.headers {
                    if !has(name, &headers) {
                        headers.push((name.clone(), value.clone()));
                    }
                }
                endpoint
            }
            (None, None) => return Ok(None),
        };
        let service = set(SERVICE_VARIABLE)?.or_else(|| table.service_name.clone());
        let config = TelemetryConfig::new(&endpoint, headers, service, table.sample);
        config.map(Some).map_err(|error| error.to_string())
    };
    match made() {
        Ok(None) => TelemetrySetting::Off,
        Ok(Some(config)) => TelemetrySetting::On(config),
        Err(why) => TelemetrySetting::Invalid(why),
    }
}

impl TelemetryTable {
    fn read(table: &dyn TableLike) -> Result<Self, Vec<TelemetryTableProblem>> {
        let (mut read, mut problems) = (Self::default(), Vec::new());
        for key in &TELEMETRY_KEYS {
            let Some(item) = table.get(key.key) else { continue };
            if let Err(why) = read.set(key.key, item) {
                problems.push(problem(key, &why));
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let endpoint = read.endpoint.as_deref().unwrap_or(ANY_ENDPOINT);
        let (headers, service) = (read.headers.clone(), read.service_name.clone());
        match TelemetryConfig::new(endpoint, headers, service, read.sample) {
            Ok(_) => Ok(read),
            Err(error) => {
                let key = key_of(&error);
                let found = TELEMETRY_KEYS.iter().filter(|known| known.key == key);
                Err(found.map(|known| problem(known, &error.to_string())).collect())
            }
        }
    }

    fn set(&mut self, key: &str, item: &Item) -> Result<(), String> {
        match key {
            "endpoint" => self.endpoint = Some(text(item)?),
            "service_name" => self.service_name = Some(text(item)?),
            "sample" => self.sample = Some(number(item)?),
            _ => {
                let pairs = item.as_table_like().ok_or("it is not a table of names and values")?;
                for (name, value) in pairs.iter() {
                    self.headers.insert(name.to_owned(), text(value)?);
                }
            }
        }
        Ok(())
    }
}

fn problem(key: &TelemetryKey, why: &str) -> TelemetryTableProblem {
    TelemetryTableProblem {
        key: Some(key.key),
        what: format!("`{}` has a wrong value: {why}", key.key),
        remedy: format!("write {}", key.value),
    }
}

/// The key whose value is wrong.
fn key_of(error: &TelemetryError) -> &'static str {
    match error {
        TelemetryError::Endpoint(_)
        | TelemetryError::EndpointTooLong
        | TelemetryError::Credentials => "endpoint",
        TelemetryError::Headers | TelemetryError::Header(_) | TelemetryError::TooManyHeaders => {
            "headers"
        }
        TelemetryError::ServiceName => "service_name",
        TelemetryError::Sample => "sample",
    }
}

fn text(item: &Item) -> Result<String, String> {
    item.as_str().map(str::to_owned).ok_or_else(|| "it is not text in quotes".to_owned())
}

fn number(item: &Item) -> Result<f64, String> {
    match item.as_value() {
        Some(Value::Float(number)) => Ok(*number.value()),
        Some(Value::Integer(number)) if *number.value() == 0 => Ok(0.0),
        Some(Value::Integer(number)) if *number.value() == 1 => Ok(1.0),
        _ => Err("it is not a number from 0 to 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[telemetry]\nendpoint = \"https://otlp.example.org\"\n\
                        headers = { authorization = \"Bearer secret\" }\nsample = 0.5\n";

    /// What a file and variables set: the endpoint, the names of headers, the service, and the share.
    fn shown(text: &str, is_private: bool, variables: &[(&str, &str)]) -> String {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        match setting(of(text), is_private, variable) {
            TelemetrySetting::Off => "off".to_owned(),
            TelemetrySetting::Invalid(why) => why,
            TelemetrySetting::On(config) => {
                let headers: Vec<&str> =
                    config.headers.iter().map(|(name, _)| name.as_str()).collect();
                let (host, headers) = (config.endpoint.authority, headers.join("+"));
                format!("{host} [{headers}] {} {}", config.service_name, config.sample)
            }
        }
    }

    #[test]
    fn variables_win_over_the_file() {
        let endpoint = (ENDPOINT_VARIABLE, "http://127.0.0.1:4318");
        for (text, variables, expected) in [
            ("", vec![], "off"),
            ("[telemetry]\nservice_name = \"x\"\n", vec![], "off"),
            ("", vec![(ENDPOINT_VARIABLE, "")], "off"),
            ("", vec![endpoint], "127.0.0.1:4318 [] windlass 1"),
            (FILE, vec![], "otlp.example.org [authorization] windlass 0.5"),
            (FILE, vec![endpoint], "127.0.0.1:4318 [] windlass 0.5"),
            (
                FILE,
                vec![(HEADERS_VARIABLE, "a=b,Authorization=c"), (SERVICE_VARIABLE, "ci")],
                "otlp.example.org [a+authorization] ci 0.5",
            ),
        ] {
            assert_eq!(shown(text, true, &variables), expected, "{text} {variables:?}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        for (text, is_private, variables, expected) in [
            (FILE, false, vec![], "others can read"),
            ("", true, vec![(ENDPOINT_VARIABLE, "127.0.0.1:4318")], "is not a URL"),
            (FILE, true, vec![(HEADERS_VARIABLE, "a")], "OTEL_EXPORTER_OTLP_HEADERS"),
        ] {
            let found = shown(text, is_private, &variables);
            assert!(found.contains(expected) && !found.contains("secret"), "{found}");
        }
    }

    #[test]
    fn each_wrong_value_is_named() {
        for (text, key, expected) in [
            ("endpoint = 4318", "endpoint", "text in quotes"),
            ("endpoint = \"localhost\"", "endpoint", "is not a URL"),
            ("endpoint = \"http://example:secret@localhost\"", "endpoint", "headers"),
            ("headers = \"a=b\"", "headers", "not a table"),
            ("headers = { a = 1 }", "headers", "text in quotes"),
            ("headers = { host = \"a\" }", "headers", "cannot be sent"),
            ("service_name = \"\"", "service_name", "empty"),
            ("sample = 2", "sample", "from 0 to 1"),
            ("sample = 1.5", "sample", "from 0 to 1"),
        ] {
            let document = Document::parse(format!("[telemetry]\n{text}\n")).unwrap();
            let problems = check(document.get("telemetry").unwrap());
            assert_eq!(problems.len(), 1, "{text}: {problems:?}");
            assert_eq!(problems[0].key, Some(key), "{text}");
            assert!(problems[0].what.contains(expected), "{text}: {problems:?}");
            assert!(!problems[0].what.contains("secret"), "{problems:?}");
        }
        let document = Document::parse("telemetry = 3\n").unwrap();
        assert_eq!(check(document.get("telemetry").unwrap())[0].key, None);
    }
}
