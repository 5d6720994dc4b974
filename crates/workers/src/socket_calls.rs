//! The calls of the running turn that come from a tool socket: passes them on to the keeper, and the answers back.

use std::collections::HashMap;

use tokio::sync::mpsc;
use windlass_protocol::host::ToolError;
use windlass_protocol::worker::FromWorker;
use windlass_protocol::{CallNo, ErrorCode, TurnNo};
use windlass_worker_kit::outgoing;

use crate::outbox::Outbox;
use crate::tool_socket::{ToolEvent, ToolSocketCall, failure, refusal, success};

/// Maximum number of times that a call is sent while nodes are replaced.
const TRIES_MAX: u32 = 100;

/// How calls are passed on.
#[derive(Debug, Clone, Copy, Default)]
pub enum CallMode {
    /// Each call once, by the name that it gives. A host tool may have run when its call fails.
    #[default]
    AsNamed,
    /// All calls are of this tool. A call is sent again when the node is replaced, if that has the same effect.
    Repeated { tool: &'static str, can_repeat: fn(&[u8]) -> bool },
}

/// A call that waits for its result.
#[derive(Debug)]
struct WaitingToolCall {
    call: ToolSocketCall,
    tries: u32,
}

/// Calls between the tool socket and the keeper.
#[derive(Debug, Default)]
pub struct SocketCalls {
    /// Absent if the worker has no tool socket.
    events: Option<mpsc::Receiver<ToolEvent>>,
    mode: CallMode,
    made: u64,
    open: HashMap<CallNo, WaitingToolCall>,
}

impl SocketCalls {
    pub fn new(events: Option<mpsc::Receiver<ToolEvent>>) -> Self {
        Self { events, ..Self::default() }
    }

    /// Calls of one tool. `can_repeat` says whether a call with these arguments has the same effect when it is sent twice.
    pub fn repeated(
        events: Option<mpsc::Receiver<ToolEvent>>,
        tool: &'static str,
        can_repeat: fn(&[u8]) -> bool,
    ) -> Self {
        Self { events, mode: CallMode::Repeated { tool, can_repeat }, ..Self::default() }
    }

    /// The next event of the tool socket. Cancelling loses nothing.
    pub async fn next(&mut self) -> ToolEvent {
        if let Some(events) = &mut self.events
            && let Some(event) = events.recv().await
        {
            return event;
        }
        std::future::pending().await
    }

    /// A number for a new call.
    pub fn number(&mut self) -> CallNo {
        self.made += 1;
        CallNo(self.made)
    }

    /// Passes an event on to the keeper.
    pub fn take(&mut self, event: ToolEvent, running: Option<TurnNo>, outbox: &mut Outbox) {
        match (event, running) {
            (ToolEvent::Call(call), None) => {
                let _ = call.answer.send(refusal("bad_request", "no turn is running"));
            }
            (ToolEvent::Call(call), Some(turn)) => {
                self.send(WaitingToolCall { call, tries: 1 }, turn, outbox);
            }
            (ToolEvent::GivenUp { request }, running) => {
                let found = self.open.iter().find(|(_, open)| open.call.request == request);
                let Some(call) = found.map(|(call, _)| *call) else { return };
                self.open.remove(&call);
                if let Some(turn) = running {
                    outbox.plain(FromWorker::ToolCancel { turn, call });
                }
            }
        }
    }

    fn send(&mut self, mut waiting: WaitingToolCall, turn: TurnNo, outbox: &mut Outbox) {
        let number = self.number();
        let name = match self.mode {
            CallMode::AsNamed => outgoing::name(&waiting.call.name),
            CallMode::Repeated { tool, .. } => tool.to_owned(),
        };
        let deadline_ms = waiting.call.deadline_ms;
        let header = |more| FromWorker::ToolCall {
            turn,
            call: number,
            name: name.clone(),
            deadline_ms,
            more,
        };
        match outbox.with_body(&waiting.call.arguments, header) {
            Ok(()) => {
                if matches!(self.mode, CallMode::AsNamed) {
                    waiting.call.arguments = Vec::new();
                }
                self.open.insert(number, waiting);
            }
            Err(refused) => {
                let told = refusal("message_too_large", &refused.to_string());
                let _ = waiting.call.answer.send(told);
            }
        }
    }

    /// The keeper's answer. An answer to a call that is over is dropped.
    pub fn answer(
        &mut self,
        turn: TurnNo,
        call: CallNo,
        ok: bool,
        body: &[u8],
        outbox: &mut Outbox,
    ) {
        let Some(mut open) = self.open.remove(&call) else { return };
        let can_repeat = match self.mode {
            CallMode::AsNamed => false,
            CallMode::Repeated { can_repeat, .. } => can_repeat(&open.call.arguments),
        };
        if !ok && is_node_gone(body) && can_repeat && open.tries < TRIES_MAX {
            open.tries += 1;
            return self.send(open, turn, outbox);
        }
        let _ = open.call.answer.send(if ok { success(body) } else { failure(body) });
    }

    /// The turn is over, and so are its calls, also those that have not been taken yet.
    pub fn end_turn(&mut self) {
        while let Some(Ok(event)) = self.events.as_mut().map(mpsc::Receiver::try_recv) {
            if let ToolEvent::Call(call) = event {
                let _ =
                    call.answer.send(refusal("tool_cancelled", "the turn of this call is over"));
            }
        }
        for (_, open) in self.open.drain() {
            let told = refusal("tool_cancelled", "the turn of this call is over");
            let _ = open.call.answer.send(told);
        }
    }
}

/// Whether a call failed because the node was replaced.
fn is_node_gone(error: &[u8]) -> bool {
    let error = serde_json::from_slice::<ToolError>(error);
    error.is_ok_and(|error| error.code == Some(ErrorCode::ToolHostGone))
}
