//! Code that waits for a line of input. The question goes to the client's user if the client can
//! ask, and otherwise to the model as a state of the turn. A request for a secret goes to neither:
//! forms are not meant for secrets, and what a model reads is stored.

use std::time::Duration;

use rmcp::model::{
    ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema,
    InputRequest, InputRequests, InputRequiredResult, InputResponses,
};
use serde_json::{Value, json};
use windlass_client::Client;
use windlass_protocol::api::{StdinWait, Turn, TurnInput, TurnQuery};
use windlass_protocol::kinds::agent::is_agent;
use windlass_protocol::{SessionId, TurnId};

use crate::call::{ClientCall, ElicitationSupport};
use crate::fault::Fault;
use crate::permission::PermissionPrompt;

/// The name of the question and of the form field for its answer.
const INPUT: &str = "input";

/// How long a user may take to answer.
const USER_WAIT: Duration = Duration::from_secs(10 * 60);

/// The note to the model when its user did not answer.
pub(crate) const REFUSED: &str = "the user was asked and gave no answer";

/// The outcome of asking the client's user.
#[derive(Debug)]
pub(crate) enum AskOutcome {
    /// The user was not asked; the model sees the question.
    NotAsked,
    /// This call's answer holds the question; the client repeats the call with the user's answer.
    ByAnswer(InputRequiredResult),
    Answered(UserAnswer),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UserAnswer {
    Text(String),
    Declined,
    /// No usable answer: ask again.
    Missing,
}

/// The state that a client returns with an answer: which question of which turn the answer is for.
/// A client could name the turn without it, so it is protected against damage only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InputQuestion {
    pub session: SessionId,
    pub turn: TurnId,
    /// The first question of a call has number 1.
    pub number: u32,
}

impl InputQuestion {
    fn state(&self) -> String {
        let bare = self.bare();
        format!("{bare}/{:08x}", crc32fast::hash(bare.as_bytes()))
    }

    fn bare(&self) -> String {
        format!("{}/{}/{}", self.session, self.turn, self.number)
    }

    pub fn parse(state: &str) -> Option<Self> {
        let (bare, check) = state.rsplit_once('/')?;
        let (turn, number) = bare.rsplit_once('/')?;
        let (session, turn) = turn_of(turn)?;
        let question = Self { session, turn, number: number.parse().ok()? };
        (format!("{:08x}", crc32fast::hash(question.bare().as_bytes())) == check)
            .then_some(question)
    }
}

/// Asks the client's user for the turn's input. `number` counts the questions of this call.
pub(crate) async fn ask(call: &ClientCall, turn: &Turn, number: u32) -> AskOutcome {
    let Some(wait) = turn.stdin_wait.as_ref().filter(|wait| !wait.secret) else {
        return AskOutcome::NotAsked;
    };
    match call.elicitation {
        ElicitationSupport::Never => AskOutcome::NotAsked,
        ElicitationSupport::ByAnswer => {
            let (session, turn) = (turn.session.clone(), turn.id.clone());
            let state = InputQuestion { session, turn, number }.state();
            AskOutcome::ByAnswer(InputRequiredResult::new(Some(question(wait)), Some(state)))
        }
        ElicitationSupport::ByRequest => {
            let asked = call.peer().create_elicitation_with_timeout(form(wait), Some(USER_WAIT));
            // If the client fails to ask, the model gets the question.
            asked.await.map_or(AskOutcome::NotAsked, |answer| AskOutcome::Answered(read(&answer)))
        }
    }
}

/// The turn's question as answers and tasks carry it.
pub(crate) fn question(wait: &StdinWait) -> InputRequests {
    let request = InputRequest::Elicitation(ElicitRequest::new(form(wait)));
    InputRequests::from([(INPUT.to_owned(), request)])
}

/// The user's answer to a question that an answer or a task carried.
pub(crate) fn answer_of(responses: &InputResponses) -> UserAnswer {
    let answer = responses.get(INPUT).cloned();
    match answer.and_then(|answer| serde_json::from_value::<ElicitResult>(answer).ok()) {
        Some(answer) => read(&answer),
        None => UserAnswer::Missing,
    }
}

/// Sends a line of the model to a turn, unless the turn waits for something that a person must answer.
pub(crate) async fn send_from_model(
    client: &Client,
    session: &SessionId,
    turn: &TurnId,
    line: &str,
) -> Result<(), Fault> {
    // An agent asks for nothing but permissions.
    if is_agent(&client.session(session).await?.kind) {
        return Err(Fault::Permission(session.clone()));
    }
    send(client, session, turn, line).await
}

/// The user declined to answer. That refuses a permission. `shown` is what the user saw, if that is known. Returns whether
/// the turn waited for a permission.
pub(crate) async fn refuse_permission(
    client: &Client,
    session: &SessionId,
    turn: &TurnId,
    shown: Option<StdinWait>,
) -> Result<bool, Fault> {
    let shown = match shown {
        Some(shown) => Some(shown),
        None => client.turn(session, turn, TurnQuery::default()).await?.stdin_wait,
    };
    let Some(permission) = shown.as_ref().and_then(PermissionPrompt::of) else {
        return Ok(false);
    };
    if !is_agent(&client.session(session).await?.kind) {
        return Ok(false);
    }
    send(client, session, turn, &permission.refusal()).await?;
    Ok(true)
}

/// Sends a line to a turn, unless the turn waits for a secret by now.
pub(crate) async fn send(
    client: &Client,
    session: &SessionId,
    turn: &TurnId,
    line: &str,
) -> Result<(), Fault> {
    let now = client.turn(session, turn, TurnQuery::default()).await?;
    if now.stdin_wait.is_some_and(|wait| wait.secret) {
        return Err(Fault::Secret(session.clone()));
    }
    let text = if line.ends_with('\n') { line.to_owned() } else { format!("{line}\n") };
    let input = TurnInput { text: Some(text), ..TurnInput::default() };
    Ok(client.send_input(session, turn, &input).await.map(drop)?)
}

/// Parses `session/turn`.
pub(crate) fn turn_of(text: &str) -> Option<(SessionId, TurnId)> {
    let (session, turn) = text.split_once('/')?;
    Some((SessionId::parse(session).ok()?, TurnId::parse(turn).ok()?))
}

fn form(wait: &StdinWait) -> ElicitRequestParams {
    let prompt = wait.prompt.trim();
    let (message, field) = match (PermissionPrompt::of(wait), prompt.is_empty()) {
        (Some(permission), _) => (permission.question.to_owned(), permission.field()),
        (None, true) => ("The running code waits for a line of input".to_owned(), line_field()),
        (None, false) => (prompt.to_owned(), line_field()),
    };
    let schema: ElicitationSchema = serde_json::from_value(json!({
        "type": "object",
        "properties": {INPUT: field},
        "required": [INPUT],
    }))
    .unwrap_or_else(|_| ElicitationSchema::new(Default::default()));
    ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema: schema }
}

fn line_field() -> Value {
    json!({"type": "string", "title": "Input"})
}

fn read(answer: &ElicitResult) -> UserAnswer {
    if answer.action != ElicitationAction::Accept {
        return UserAnswer::Declined;
    }
    let fields = answer.content.as_ref().and_then(Value::as_object);
    // Some clients rename the form's only field; its value is still the answer.
    let field = fields.and_then(|fields| fields.get(INPUT).or_else(|| fields.values().next()));
    match field {
        Some(Value::String(text)) => UserAnswer::Text(text.clone()),
        Some(value @ (Value::Bool(_) | Value::Number(_))) => UserAnswer::Text(value.to_string()),
        _ => UserAnswer::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn responses(answer: Value) -> InputResponses {
        InputResponses::from([(INPUT.to_owned(), answer)])
    }

    #[test]
    fn an_answer_is_what_the_user_accepted() {
        let with = |text: &str| UserAnswer::Text(text.to_owned());
        for (answer, meant) in [
            (json!({"action": "accept", "content": {"input": "42"}}), with("42")),
            (json!({"action": "accept", "content": {"other": true}}), with("true")),
            (json!({"action": "decline"}), UserAnswer::Declined),
            (json!({"action": "cancel"}), UserAnswer::Declined),
            (json!({"action": "accept"}), UserAnswer::Missing),
            (json!({"action": "accept", "content": {"input": [1]}}), UserAnswer::Missing),
            (json!("42"), UserAnswer::Missing),
        ] {
            assert_eq!(answer_of(&responses(answer.clone())), meant, "{answer}");
        }
        assert_eq!(answer_of(&InputResponses::new()), UserAnswer::Missing);
    }

    #[test]
    fn a_question_is_a_form_with_one_field() {
        let wait = StdinWait { prompt: "name? ".to_owned(), secret: false };
        let asked = serde_json::to_value(question(&wait)).unwrap();
        assert_eq!(asked["input"]["method"], "elicitation/create");
        assert_eq!(asked["input"]["params"]["message"], "name?");
        let schema = &asked["input"]["params"]["requestedSchema"];
        assert_eq!(schema["properties"]["input"]["type"], "string");
    }

    #[test]
    fn a_state_names_its_question_and_nothing_else_is_one() {
        let (session, turn) = (SessionId::parse("s-1").unwrap(), TurnId::parse("t2").unwrap());
        let question = InputQuestion { session, turn, number: 3 };
        let state = question.state();
        assert_eq!(InputQuestion::parse(&state), Some(question));
        let changed = state.replacen("t2", "t3", 1);
        for wrong in ["", "s-1/t2", "s-1/t2/3", &changed, &format!("{state}-TAMPERED")] {
            assert_eq!(InputQuestion::parse(wrong), None, "{wrong}");
        }
    }
}
