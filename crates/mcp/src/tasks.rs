//! Long turns as MCP tasks. A task id holds the session, the turn and the creation time. So the id
//! means the same to every client, bridge and node, and the door stores nothing.

use chrono::{DateTime, SecondsFormat, Utc};
use rmcp::model::{
    CreateTaskResult, DetailedTask, GetTaskResult, InputResponses, Task, TaskPayload, TaskStatus,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::Value;
use windlass_client::{Client, ClientError};
use windlass_protocol::api::{Turn, TurnQuery, TurnState};
use windlass_protocol::{ErrorCode, Outcome, SessionId, TurnId};

use crate::arguments::output_bytes;
use crate::call::{ClientCall, ElicitationSupport};
use crate::door::Door;
use crate::fault::Fault;
use crate::follow::reply;
use crate::input::{self, UserAnswer};
use crate::output::OutputPart;
use crate::reply::TurnReply;

/// How often a client should poll.
const POLL_EVERY_MS: u64 = 1000;

/// A parsed task id.
#[derive(Debug, PartialEq, Eq)]
struct TaskHandle {
    session: SessionId,
    turn: TurnId,
    made_ms: i64,
}

impl TaskHandle {
    fn text(&self) -> String {
        format!("{}/{}/{:x}", self.session, self.turn, self.made_ms)
    }

    fn parse(text: &str) -> Option<Self> {
        let (turn, made) = text.rsplit_once('/')?;
        let (session, turn) = input::turn_of(turn)?;
        Some(Self { session, turn, made_ms: i64::from_str_radix(made, 16).ok()? })
    }

    fn task(&self, status: TaskStatus) -> Task {
        let made = DateTime::from_timestamp_millis(self.made_ms).unwrap_or_default();
        let now = Utc::now().max(made);
        Task::new(self.text(), status, moment(made), moment(now))
            .with_poll_interval_ms(POLL_EVERY_MS)
    }
}

fn moment(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Makes a task for a turn that is in the journal.
pub(crate) fn handle_of(turn: &Turn) -> CreateTaskResult {
    let made_ms = Utc::now().timestamp_millis();
    let handle = TaskHandle { session: turn.session.clone(), turn: turn.id.clone(), made_ms };
    CreateTaskResult::new(handle.task(TaskStatus::Working))
}

/// `tasks/get`.
pub(crate) async fn look(
    door: &Door,
    context: &RequestContext<RoleServer>,
    id: &str,
) -> Result<GetTaskResult, ErrorData> {
    let handle = TaskHandle::parse(id).ok_or_else(|| unknown(id))?;
    let call = ClientCall::new(door, context).await.map_err(|fault| refused(&fault))?;
    let client = door.client().await.map_err(|error| failed(id, error))?;
    let query = TurnQuery {
        wait_ms: 0,
        output_bytes_max: Some(output_bytes(None)),
        ..TurnQuery::default()
    };
    let turn = client.turn(&handle.session, &handle.turn, query).await;
    let turn = turn.map_err(|error| failed(id, error))?;
    let mut task = handle.task(TaskStatus::Working);
    let payload = match (turn.state, turn.outcome) {
        (TurnState::Ended, Some(Outcome::Interrupted)) => TaskPayload::Cancelled,
        (TurnState::Ended, _) => {
            let reply = whole(client, turn).await.map_err(|fault| refused(&fault))?;
            match serde_json::to_value(reply.into_result()) {
                Ok(Value::Object(result)) => TaskPayload::Completed { result },
                _ => {
                    return Err(ErrorData::internal_error("the result is not a JSON object", None));
                }
            }
        }
        (TurnState::AwaitingInput, _) => match &turn.stdin_wait {
            Some(wait) if !wait.secret && call.elicitation != ElicitationSupport::Never => {
                TaskPayload::InputRequired { input_requests: input::question(wait) }
            }
            _ => {
                let reply = whole(client, turn).await.map_err(|fault| refused(&fault))?;
                let said = reply.into_result().content;
                let said = said.iter().find_map(|block| Some(block.as_text()?.text.clone()));
                task = task.with_status_message(said.unwrap_or_default());
                TaskPayload::Working
            }
        },
        _ => TaskPayload::Working,
    };
    Ok(GetTaskResult::new(DetailedTask::new(task, payload)))
}

/// The reply with the turn's output from the beginning: the result of a task does not depend on earlier replies.
async fn whole(client: &Client, turn: Turn) -> Result<TurnReply, Fault> {
    let output = OutputPart::read(client, &turn, 0, output_bytes(None)).await?;
    reply(client, turn, output, None).await
}

/// `tasks/update`: the answer to the turn's question.
pub(crate) async fn answer(
    door: &Door,
    id: &str,
    responses: &InputResponses,
) -> Result<(), ErrorData> {
    let TaskHandle { session, turn, .. } = TaskHandle::parse(id).ok_or_else(|| unknown(id))?;
    let client = door.client().await.map_err(|error| failed(id, error))?;
    match input::answer_of(responses) {
        UserAnswer::Text(text) => input::send(client, &session, &turn, &text).await,
        // The user declined, so no answer will come: stop the waiting turn.
        UserAnswer::Declined => match input::refuse_permission(client, &session, &turn, None).await
        {
            Ok(false) => {
                client.interrupt_turn(&session, &turn).await.map(drop).map_err(Fault::from)
            }
            refused => refused.map(drop),
        },
        UserAnswer::Missing => Ok(()),
    }
    .map_err(|fault| match fault {
        Fault::Client(error) => failed(id, error),
        fault => refused(&fault),
    })
}

/// `tasks/cancel`.
pub(crate) async fn cancel(door: &Door, id: &str) -> Result<(), ErrorData> {
    let TaskHandle { session, turn, .. } = TaskHandle::parse(id).ok_or_else(|| unknown(id))?;
    let client = door.client().await.map_err(|error| failed(id, error))?;
    match client.interrupt_turn(&session, &turn).await {
        // The turn has already ended.
        Err(error) if error.api_code() == Some(ErrorCode::TurnNotRunning) => Ok(()),
        done => done.map(drop).map_err(|error| failed(id, error)),
    }
}

fn unknown(id: &str) -> ErrorData {
    ErrorData::invalid_params(format!("there is no task {id:?}"), None)
}

fn refused(fault: &Fault) -> ErrorData {
    ErrorData::invalid_params(fault.to_string(), None)
}

fn failed(id: &str, error: ClientError) -> ErrorData {
    match error.api_code() {
        Some(ErrorCode::SessionNotFound | ErrorCode::TurnNotFound) => unknown(id),
        _ => ErrorData::internal_error(format!("{error}: {}", error.remedy()), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_its_turn() {
        let handle = TaskHandle {
            session: SessionId::parse("codex-a-1").unwrap(),
            turn: TurnId::parse("t9").unwrap(),
            made_ms: 1_794_732_454_979,
        };
        assert_eq!(TaskHandle::parse(&handle.text()), Some(handle));
        for wrong in ["", "a", "a/b", "a/b/xyz", "a//1", "a/b/1/2/3"] {
            assert_eq!(TaskHandle::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_task_says_when_it_was_made() {
        let task = TaskHandle::parse("s/t/19d2c9c3e03").unwrap().task(TaskStatus::Working);
        assert!(task.created_at.ends_with('Z') && task.created_at.starts_with("20"), "{task:?}");
        assert!(task.last_updated_at >= task.created_at);
    }
}
