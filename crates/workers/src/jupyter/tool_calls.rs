//! The host tool calls of the running turn.

use std::collections::HashMap;

use tokio::sync::{mpsc, oneshot};
use windlass_protocol::worker::FromWorker;
use windlass_protocol::{CallNo, TurnNo};
use windlass_worker_kit::outgoing;

use crate::outbox::Outbox;
use crate::tool_socket::{ToolEvent, failure, refusal, success};

/// A call that waits for its result.
#[derive(Debug)]
struct WaitingToolCall {
    /// Its number on the tool socket.
    request: u64,
    answer: oneshot::Sender<Vec<u8>>,
}

/// Calls between the tool socket and the keeper.
#[derive(Debug, Default)]
pub struct KernelToolCalls {
    /// Absent if the kernel has no tools.
    events: Option<mpsc::Receiver<ToolEvent>>,
    made: u64,
    open: HashMap<CallNo, WaitingToolCall>,
}

impl KernelToolCalls {
    pub fn new(events: Option<mpsc::Receiver<ToolEvent>>) -> Self {
        Self { events, ..Self::default() }
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

    /// Passes an event on to the keeper.
    pub fn take(&mut self, event: ToolEvent, running: Option<TurnNo>, outbox: &mut Outbox) {
        match (event, running) {
            (ToolEvent::Call(call), None) => {
                let _ = call.answer.send(refusal("bad_request", "no turn is running"));
            }
            (ToolEvent::Call(call), Some(turn)) => {
                self.made += 1;
                let number = CallNo(self.made);
                let name = outgoing::name(&call.name);
                let header = |more| FromWorker::ToolCall {
                    turn,
                    call: number,
                    name: name.clone(),
                    deadline_ms: call.deadline_ms,
                    more,
                };
                match outbox.with_body(&call.arguments, header) {
                    Ok(()) => {
                        let open = WaitingToolCall { request: call.request, answer: call.answer };
                        self.open.insert(number, open);
                    }
                    Err(refused) => {
                        let told = refusal("message_too_large", &refused.to_string());
                        let _ = call.answer.send(told);
                    }
                }
            }
            (ToolEvent::GivenUp { request }, running) => {
                let found = self.open.iter().find(|(_, open)| open.request == request);
                let Some(call) = found.map(|(call, _)| *call) else { return };
                self.open.remove(&call);
                if let Some(turn) = running {
                    outbox.plain(FromWorker::ToolCancel { turn, call });
                }
            }
        }
    }

    /// The keeper's answer. An answer to a call that is over is dropped.
    pub fn answer(&mut self, call: CallNo, ok: bool, body: &[u8]) {
        if let Some(open) = self.open.remove(&call) {
            let _ = open.answer.send(if ok { success(body) } else { failure(body) });
        }
    }

    /// The turn is over, and so are its calls.
    pub fn end_turn(&mut self) {
        for (_, open) in self.open.drain() {
            let _ = open.answer.send(refusal("tool_cancelled", "the turn of this call is over"));
        }
    }
}
