//! Calls by which a session's agent speaks MCP: the node's MCP door answers them. A call that ends early drops its
//! task, and the door then stops what the call runs.

use std::fmt;

use bytes::Bytes;
use tokio::task::JoinHandle;
use windlass_protocol::agent::MCP_REQUEST_BYTES_MAX;
use windlass_protocol::limits::{MESSAGE_BYTES_MAX, TOOL_RESULT_BYTES_MAX};
use windlass_protocol::{CallNo, ErrorCode, TurnNo};

use super::{CallTarget, ToolAnswer, ToolCalls, answer_call, error_of, node_gone};
use crate::context::Context;
use crate::session::Request;
use crate::session::round::Round;

/// Maximum number of open MCP requests of a session.
pub(super) const OPEN_REQUESTS_MAX: usize = 16;

/// An MCP request: its bytes until all have come, then the task that answers it.
#[derive(Default)]
pub(super) struct DoorTask {
    request: Vec<u8>,
    task: Option<JoinHandle<()>>,
}

impl DoorTask {
    /// Adds a part of the request. Returns false if the request is too large.
    pub fn extend(&mut self, part: &[u8]) -> bool {
        let fits = self.request.len() + part.len() <= MCP_REQUEST_BYTES_MAX;
        if fits {
            self.request.extend_from_slice(part);
        }
        fits
    }
}

impl Drop for DoorTask {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl fmt::Debug for DoorTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoorTask").field("request_bytes", &self.request.len()).finish()
    }
}

impl ToolCalls {
    /// The number of open requests, whole or not.
    pub(super) fn open_requests(&self) -> usize {
        self.open.values().filter(|call| matches!(call.target, CallTarget::Door(_))).count()
    }

    /// The whole request is here: the door answers it in a task of its own.
    pub(super) fn ask_door(
        &mut self,
        turn: TurnNo,
        call: CallNo,
        node: &Context,
        round: &mut Round,
    ) {
        let within = self.named(turn, call);
        let owner = node.sessions.find(&self.caller.session);
        // A session that is not listed has ended or is released.
        let Some(owner) = owner else { return self.fail(call, &node_gone(), None, node, round) };
        let Some(open) = self.open.get_mut(&call) else { return };
        let CallTarget::Door(task) = &mut open.target else { return };
        let asked = node.serving.agents.answer(within, std::mem::take(&mut task.request));
        task.task = Some(tokio::spawn(async move {
            let body = asked.await.into();
            // A session that has ended needs no answer.
            let _ = owner.send(Request::DoorAnswer { turn, call, body }).await;
        }));
    }

    /// The door has answered a request.
    pub fn door_answered(
        &mut self,
        turn: TurnNo,
        call: CallNo,
        body: Bytes,
        node: &Context,
        round: &mut Round,
    ) {
        let open = self.open.get(&call).filter(|_| self.turn == turn);
        if !open.is_some_and(|open| matches!(open.target, CallTarget::Door(_))) {
            return;
        }
        if body.len() > MESSAGE_BYTES_MAX {
            let message = format!("the answer is over the limit of {MESSAGE_BYTES_MAX} bytes");
            let error = error_of(ErrorCode::MessageTooLarge, message);
            return self.fail(call, &error, None, node, round);
        }
        if self.waiting_bytes + body.len() > TOOL_RESULT_BYTES_MAX {
            let message = format!(
                "more than {TOOL_RESULT_BYTES_MAX} bytes of tool answers wait for the session"
            );
            let error = error_of(ErrorCode::Overloaded, message);
            return self.fail(call, &error, None, node, round);
        }
        self.end(call, Ok(body.len()), node, round);
        answer_call(turn, call, ToolAnswer { ok: true, more: false, body }, round);
    }
}
