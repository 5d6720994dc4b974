//! Sends the requests of one client and repeats them while the node is down. Checks of every answer that it
//! comes in time, and that a refusal has an error code of `docs/openapi.json`.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::raw_http::{NodeEndpoint, RawConnection, RawRequest, RawResponse};
use super::world::World;

/// How long an answer may take beyond the request's own wait time. A fault stops a process for at most 2 s.
const ANSWER_MAX: Duration = Duration::from_secs(40);

/// How long a request is repeated while the node is down or refuses with a retryable code.
const AWAY_MAX: Duration = Duration::from_secs(120);

/// Pauses between attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Error codes after which the same request may succeed later.
const RETRYABLE: [&str; 4] = ["overloaded", "session_busy", "disk_full", "shutting_down"];

/// Why a request has no answer.
#[derive(Debug)]
pub enum NoAnswer {
    /// The connection could not be made, or it broke.
    Cut(String),
    /// The answer took too long. The violation is recorded.
    Late,
    /// All repetitions failed. The violation is recorded.
    Away,
}

#[derive(Debug)]
pub struct HttpClient {
    pub world: Arc<World>,
    pub name: String,
    pub endpoint: NodeEndpoint,
    connection: Option<RawConnection>,
}

impl HttpClient {
    pub fn new(world: &Arc<World>, name: &str, endpoint: &NodeEndpoint) -> Self {
        Self {
            world: Arc::clone(world),
            name: name.to_owned(),
            endpoint: endpoint.clone(),
            connection: None,
        }
    }

    /// Another connection of the same client.
    pub fn another_connection(&self) -> Self {
        Self::new(&self.world, &self.name, &self.endpoint)
    }

    pub fn violation(&self, kind: &str, text: impl AsRef<str>) {
        self.world.ledger.violation(&self.name, kind, text.as_ref());
    }

    /// Closes the connection. The next request opens a new one.
    pub fn cut(&mut self) {
        self.connection = None;
    }

    /// Sends the request once.
    pub async fn send_once(
        &mut self,
        request: &RawRequest,
        wait_ms: u64,
    ) -> Result<RawResponse, NoAnswer> {
        self.world.ledger.count("requests");
        let bound = ANSWER_MAX + Duration::from_millis(wait_ms);
        let began = Instant::now();
        let mut cuts = self.world.cuts();
        let exchanged = tokio::time::timeout(bound, async {
            tokio::select! {
                exchanged = self.exchange(request) => exchanged,
                Ok(()) = cuts.changed() => Err(io::ErrorKind::ConnectionAborted.into()),
            }
        });
        let exchanged = exchanged.await;
        let answer = match exchanged {
            Ok(Ok(answer)) => answer,
            Ok(Err(fault)) => {
                self.connection = None;
                if fault.kind() == io::ErrorKind::InvalidData {
                    let text = format!("{} {}: {fault}", request.method, request.path);
                    self.violation("garbled", text);
                }
                return Err(NoAnswer::Cut(fault.to_string()));
            }
            Err(_) => {
                self.connection = None;
                let took = began.elapsed().as_secs_f64();
                let (method, path) = (request.method, &request.path);
                self.violation("hang", format!("{method} {path}: no answer in {took:.1} s"));
                return Err(NoAnswer::Late);
            }
        };
        if answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            self.connection = None;
        }
        self.check(request, &answer);
        Ok(answer)
    }

    /// Sends the request, and repeats it after a broken connection or a retryable refusal, for [`AWAY_MAX`].
    /// Only for idempotent requests.
    pub async fn send_with_retry(
        &mut self,
        request: &RawRequest,
        wait_ms: u64,
    ) -> Result<RawResponse, NoAnswer> {
        let began = Instant::now();
        let mut pause = PAUSE_FIRST;
        loop {
            let last = match self.send_once(request, wait_ms).await {
                Ok(answer) => match code_of(&answer) {
                    Some(code) if RETRYABLE.contains(&code.as_str()) && code != "session_busy" => {
                        self.world.ledger.count(&format!("refused {code}"));
                        answer.shown()
                    }
                    _ => return Ok(answer),
                },
                Err(NoAnswer::Cut(fault)) => fault,
                Err(other) => return Err(other),
            };
            if began.elapsed() > AWAY_MAX {
                let (method, path) = (request.method, &request.path);
                let text = format!(
                    "{method} {path}: no success in {AWAY_MAX:?}; the last attempt: {last}"
                );
                self.violation("away", text);
                return Err(NoAnswer::Away);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Parses the body of an answer. A body that does not parse is a violation.
    pub fn read<T: DeserializeOwned>(&self, what: &str, answer: &RawResponse) -> Option<T> {
        match serde_json::from_slice(&answer.body) {
            Ok(read) => Some(read),
            Err(fault) => {
                self.violation("form", format!("{what}: {fault}: {}", answer.shown()));
                None
            }
        }
    }

    async fn exchange(&mut self, request: &RawRequest) -> io::Result<RawResponse> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => RawConnection::open(&self.endpoint).await?,
        };
        connection.write(&request.bytes(&self.endpoint)).await?;
        let answer = connection.answer().await?;
        self.connection = Some(connection);
        Ok(answer)
    }

    fn check(&self, request: &RawRequest, answer: &RawResponse) {
        if let Some(fault) = refusal_fault(&self.world, answer) {
            let (method, path) = (request.method, &request.path);
            self.violation("refusal", format!("{method} {path}: {fault}: {}", answer.shown()));
        }
    }
}

/// What is wrong with a refusal, for any request. `None` if nothing is.
pub fn refusal_fault(world: &World, answer: &RawResponse) -> Option<String> {
    if answer.status < 400 {
        return None;
    }
    let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let Some(code) = said["code"].as_str().filter(|code| world.codes.contains(*code)) else {
        return Some("no code of docs/openapi.json".to_owned());
    };
    world.ledger.count(&format!("code {code}"));
    if code == "internal" {
        return Some("the code is internal".to_owned());
    }
    let retryable = RETRYABLE.contains(&code);
    if said["retryable"].as_bool() != Some(retryable) {
        return Some(format!("retryable is {}, not {retryable}", said["retryable"]));
    }
    None
}

/// The error code of a refusal.
pub fn code_of(answer: &RawResponse) -> Option<String> {
    let said: Value =
        (answer.status >= 400).then(|| serde_json::from_slice(&answer.body).ok())??;
    said["code"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_without_a_promised_code_or_with_the_wrong_retryable_is_a_fault() {
        let world = World::new(1, "/python".into()).unwrap();
        let check = |status: u16, body: &str| {
            let answer =
                RawResponse { status, headers: Vec::new(), body: body.as_bytes().to_vec() };
            refusal_fault(&world, &answer).unwrap_or_default()
        };
        assert_eq!(check(200, "anything"), "");
        assert_eq!(check(404, r#"{"code": "session_not_found", "retryable": false}"#), "");
        assert_eq!(check(503, r#"{"code": "overloaded", "retryable": true}"#), "");
        assert!(check(503, r#"{"code": "overloaded"}"#).contains("retryable"));
        assert!(check(400, "Invalid URL").contains("no code"));
        assert!(check(400, r#"{"code": "strange"}"#).contains("no code"));
        assert!(check(500, r#"{"code": "internal", "retryable": false}"#).contains("internal"));
    }
}
