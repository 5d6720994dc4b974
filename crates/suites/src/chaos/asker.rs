//! One client's way to the node: sends requests, repeats them while the node is away, and checks of every
//! answer what holds for all of them: it comes in time, and a refusal has a code that clients were promised.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::http::{Answer, Door, Request, Wire};
use super::world::World;

/// How long an answer may take beyond what the request itself asked to wait. A stopped process of a fault
/// stays so for 2 s at most.
const ANSWER_MAX: Duration = Duration::from_secs(40);

/// How long a request is repeated while the node is away or refuses for now.
const AWAY_MAX: Duration = Duration::from_secs(120);

/// Pauses between attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Codes of refusals that the same request may overcome later.
const RETRYABLE: [&str; 4] = ["overloaded", "session_busy", "disk_full", "shutting_down"];

/// The request has no answer, and is not repeated.
#[derive(Debug)]
pub enum NoAnswer {
    /// The connection did not come about, or broke off.
    Cut(String),
    /// It took too long; that is a violation, told already.
    Late,
    /// Repeating did not help; that is a violation, told already.
    Away,
}

#[derive(Debug)]
pub struct Asker {
    pub world: Arc<World>,
    pub name: String,
    pub door: Door,
    wire: Option<Wire>,
}

impl Asker {
    pub fn new(world: &Arc<World>, name: &str, door: &Door) -> Self {
        Self { world: Arc::clone(world), name: name.to_owned(), door: door.clone(), wire: None }
    }

    /// Another connection of the same client.
    pub fn beside(&self) -> Self {
        Self::new(&self.world, &self.name, &self.door)
    }

    pub fn violation(&self, kind: &str, text: impl AsRef<str>) {
        self.world.ledger.violation(&self.name, kind, text.as_ref());
    }

    /// Lets go of the connection: the next request makes another.
    pub fn cut(&mut self) {
        self.wire = None;
    }

    /// One attempt.
    pub async fn once(&mut self, request: &Request, wait_ms: u64) -> Result<Answer, NoAnswer> {
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
                self.wire = None;
                if fault.kind() == io::ErrorKind::InvalidData {
                    let text = format!("{} {}: {fault}", request.method, request.path);
                    self.violation("garbled", text);
                }
                return Err(NoAnswer::Cut(fault.to_string()));
            }
            Err(_) => {
                self.wire = None;
                let took = began.elapsed().as_secs_f64();
                let (method, path) = (request.method, &request.path);
                self.violation("hang", format!("{method} {path}: no answer in {took:.1} s"));
                return Err(NoAnswer::Late);
            }
        };
        if answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            self.wire = None;
        }
        self.check(request, &answer);
        Ok(answer)
    }

    /// Repeats over broken connections, and over refusals that say so, for a while. Only for requests that
    /// the node does once however often they come.
    pub async fn patient(&mut self, request: &Request, wait_ms: u64) -> Result<Answer, NoAnswer> {
        let began = Instant::now();
        let mut pause = PAUSE_FIRST;
        loop {
            let last = match self.once(request, wait_ms).await {
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
                let text = format!("{method} {path}: no success in {AWAY_MAX:?}; last: {last}");
                self.violation("away", text);
                return Err(NoAnswer::Away);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The answer's body, as it must be.
    pub fn read<T: DeserializeOwned>(&self, what: &str, answer: &Answer) -> Option<T> {
        match serde_json::from_slice(&answer.body) {
            Ok(read) => Some(read),
            Err(fault) => {
                self.violation("form", format!("{what}: {fault}: {}", answer.shown()));
                None
            }
        }
    }

    async fn exchange(&mut self, request: &Request) -> io::Result<Answer> {
        let mut wire = match self.wire.take() {
            Some(wire) => wire,
            None => Wire::open(&self.door).await?,
        };
        wire.write(&request.bytes(&self.door)).await?;
        let answer = wire.answer().await?;
        self.wire = Some(wire);
        Ok(answer)
    }

    fn check(&self, request: &Request, answer: &Answer) {
        if let Some(fault) = refusal_fault(&self.world, answer) {
            let (method, path) = (request.method, &request.path);
            self.violation("refusal", format!("{method} {path}: {fault}: {}", answer.shown()));
        }
    }
}

/// What is wrong with a refusal, whatever was asked.
pub fn refusal_fault(world: &World, answer: &Answer) -> Option<String> {
    if answer.status < 400 {
        return None;
    }
    let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let Some(code) = said["code"].as_str().filter(|code| world.codes.contains(*code)) else {
        return Some("no code that is in docs/openapi.json".to_owned());
    };
    world.ledger.count(&format!("code {code}"));
    if code == "internal" {
        return Some("an internal fault".to_owned());
    }
    let retryable = RETRYABLE.contains(&code);
    if said["retryable"].as_bool() != Some(retryable) {
        return Some(format!("retryable is {}, not {retryable}", said["retryable"]));
    }
    None
}

/// The code of a refusal.
pub fn code_of(answer: &Answer) -> Option<String> {
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
            let answer = Answer { status, headers: Vec::new(), body: body.as_bytes().to_vec() };
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
