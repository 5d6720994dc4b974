//! One attached tool host, as the rest of the node sees it: a bounded queue of messages to the host,
//! and the sessions that have called it. Sends nothing itself: the HTTP door takes the messages out of
//! the queue one at a time.

use std::collections::{HashSet, VecDeque};
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use windlass_protocol::host::ToHost;
use windlass_protocol::limits::TOOL_HOST_BYTES_MAX;
use windlass_protocol::{CallNo, SessionId, TurnNo};

use super::hub::HostId;

/// Maximum number of control messages in the queue of one host. It is enough to cancel all calls of its
/// sessions at once. A host with more waiting messages is dropped as too slow.
const CONTROL_MESSAGES_MAX: usize = 8 * 1024;

/// What a queued message counts besides its body: about its size in memory.
const MESSAGE_BYTES: usize = 256;

#[derive(Debug)]
pub struct AttachedHost {
    id: HostId,
    queue: Mutex<HostQueue>,
    /// Wakes the one task that takes messages out of the queue.
    waker: AtomicWaker,
    callers: Mutex<HashSet<SessionId>>,
}

#[derive(Debug, Default)]
struct HostQueue {
    control: VecDeque<ToHost>,
    data: VecDeque<OutboundMessage>,
    bytes: usize,
    /// Calls of which some messages were taken out of the queue, but not the last one.
    begun: HashSet<CallKey>,
    ended: Option<DetachReason>,
}

/// A message for a host, and its body.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboundMessage {
    pub message: ToHost,
    pub body: Bytes,
}

/// Why the node detaches a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetachReason {
    /// The host does not read its messages.
    TooSlow,
    /// The only session that could call the host has ended.
    SessionOver,
    /// The host sent a message that is not a frame.
    NotAFrame,
    /// The host sent a text message.
    NotBinary,
    /// A message to the host does not fit into a frame.
    Unencodable,
    /// The node stops; the host should connect to the next node.
    NodeStops,
}

type CallKey = (SessionId, TurnNo, CallNo);

/// The host's queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tool host has more than {TOOL_HOST_BYTES_MAX} bytes of unread calls")]
pub struct QueueFull;

impl AttachedHost {
    pub fn new(id: HostId) -> Self {
        Self { id, queue: Mutex::default(), waker: AtomicWaker::new(), callers: Mutex::default() }
    }

    pub fn id(&self) -> HostId {
        self.id
    }

    /// Queues data: frames of calls, in order. When the queue is full, nothing is queued.
    pub fn send(&self, message: &ToHost, body: Bytes) -> Result<(), QueueFull> {
        let bytes = MESSAGE_BYTES + body.len();
        let mut queue = self.queue();
        if queue.bytes + bytes > TOOL_HOST_BYTES_MAX {
            return Err(QueueFull);
        }
        // A host that is being detached gets no more messages. Its callers learn of it when it is gone.
        if queue.ended.is_none() {
            queue.bytes += bytes;
            queue.data.push_back(OutboundMessage { message: message.clone(), body });
        }
        drop(queue);
        self.waker.wake();
        Ok(())
    }

    /// Queues a control message ahead of all data. A cancel removes the queued data of its call; if the
    /// host has received nothing of the call, the cancel itself is dropped too.
    pub fn send_first(&self, message: &ToHost) {
        let mut queue = self.queue();
        if queue.ended.is_some() {
            return;
        }
        if let Some(call) = cancelled(message)
            && !queue.drop_call(&call)
        {
            return;
        }
        if queue.control.len() == CONTROL_MESSAGES_MAX {
            queue.end(DetachReason::TooSlow);
        } else {
            queue.control.push_back(message.clone());
        }
        drop(queue);
        self.waker.wake();
    }

    /// Detaches the host: drops its queue and makes the HTTP door close its connection.
    pub fn end(&self, ending: DetachReason) {
        self.queue().end(ending);
        self.waker.wake();
    }

    pub fn ending(&self) -> Option<DetachReason> {
        self.queue().ended
    }

    /// Waits for the next message, or for the reason why there will be none. For one task only.
    pub async fn next(&self) -> Result<OutboundMessage, DetachReason> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next message, if one is queued.
    pub fn next_now(&self) -> Option<OutboundMessage> {
        self.queue().take().and_then(Result::ok)
    }

    fn poll_next(&self, cx: &Context<'_>) -> Poll<Result<OutboundMessage, DetachReason>> {
        if let Some(next) = self.queue().take() {
            return Poll::Ready(next);
        }
        self.waker.register(cx.waker());
        // A message may have been queued before the waker was registered.
        self.queue().take().map_or(Poll::Pending, Poll::Ready)
    }

    /// Remembers a session that calls this host, so that the session is told when the host is gone.
    pub fn called_by(&self, session: &SessionId) {
        let mut callers = self.callers();
        if !callers.contains(session) {
            callers.insert(session.clone());
        }
    }

    pub fn forget_caller(&self, session: &SessionId) {
        self.callers().remove(session);
    }

    /// The sessions to tell that this host is gone.
    pub fn take_callers(&self) -> HashSet<SessionId> {
        std::mem::take(&mut self.callers())
    }

    fn queue(&self) -> MutexGuard<'_, HostQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callers(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostQueue {
    fn take(&mut self) -> Option<Result<OutboundMessage, DetachReason>> {
        if let Some(ending) = self.ended {
            return Some(Err(ending));
        }
        if let Some(message) = self.control.pop_front() {
            return Some(Ok(OutboundMessage { message, body: Bytes::new() }));
        }
        let sent = self.data.pop_front()?;
        self.bytes -= MESSAGE_BYTES + sent.body.len();
        if let ToHost::ToolCall { session, turn, call, more, .. } = &sent.message {
            let name = (session.clone(), *turn, *call);
            if *more {
                self.begun.insert(name);
            } else if !self.begun.is_empty() {
                self.begun.remove(&name);
            }
        }
        Some(Ok(sent))
    }

    /// Drops the queued messages of a call. Returns whether the host has received some of the call.
    fn drop_call(&mut self, call: &CallKey) -> bool {
        let before = self.data.len();
        let mut bytes = 0;
        self.data.retain(|sent| {
            let of_it = called(&sent.message).is_some_and(|(session, turn, number)| {
                (session, turn, number) == (&call.0, call.1, call.2)
            });
            bytes += if of_it { MESSAGE_BYTES + sent.body.len() } else { 0 };
            !of_it
        });
        self.bytes -= bytes;
        let nothing_waited = self.data.len() == before;
        self.begun.remove(call) || nothing_waited
    }

    fn end(&mut self, ending: DetachReason) {
        *self = Self { ended: Some(self.ended.unwrap_or(ending)), ..Self::default() };
    }
}

fn called(message: &ToHost) -> Option<(&SessionId, TurnNo, CallNo)> {
    match message {
        ToHost::ToolCall { session, turn, call, .. } => Some((session, *turn, *call)),
        _ => None,
    }
}

fn cancelled(message: &ToHost) -> Option<CallKey> {
    match message {
        ToHost::ToolCancel { session, turn, call, .. } => Some((session.clone(), *turn, *call)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::host::CancelReason;
    use windlass_protocol::limits::CHUNK_BYTES_MAX;

    use super::*;
    use crate::{HostScope, Hub};

    fn host() -> std::sync::Arc<AttachedHost> {
        Hub::default().attach(HostScope::Shared).unwrap()
    }

    fn session() -> SessionId {
        SessionId::parse("s").unwrap()
    }

    fn call(number: u64, more: bool) -> ToHost {
        ToHost::ToolCall {
            session: session(),
            turn: TurnNo(1),
            call: CallNo(number),
            name: "t".to_owned(),
            deadline_ms: 1,
            more,
        }
    }

    fn cancel(number: u64) -> ToHost {
        let reason = CancelReason::GivenUp;
        ToHost::ToolCancel { session: session(), turn: TurnNo(1), call: CallNo(number), reason }
    }

    fn left(host: &AttachedHost) -> Vec<String> {
        let told = |message: &ToHost| match message {
            ToHost::ToolCall { call, more, .. } => {
                format!("{call}{}", if *more { "+" } else { "" })
            }
            ToHost::ToolCancel { call, .. } => format!("x{call}"),
            other => format!("{other:?}"),
        };
        std::iter::from_fn(|| host.next_now()).map(|sent| told(&sent.message)).collect()
    }

    /// `said`: calls by number (`1+`: more follows), cancels (`x1`), and `|` where one message is
    /// written.
    fn check(said: &str, written: &str) {
        let host = host();
        let mut told = Vec::new();
        for word in said.split(' ') {
            if word == "|" {
                let sent = host.next_now().unwrap();
                let number = called(&sent.message).unwrap().2;
                told.push(format!("{number}"));
            } else if let Some(number) = word.strip_prefix('x') {
                host.send_first(&cancel(number.parse().unwrap()));
            } else {
                let number = word.trim_end_matches('+');
                let more = number != word;
                host.send(&call(number.parse().unwrap(), more), Bytes::from_static(b"{}")).unwrap();
            }
        }
        told.extend(left(&host));
        assert_eq!(told.join(" "), written, "{said}");
        let queue = host.queue();
        assert_eq!((queue.bytes, queue.begun.len()), (0, 0), "{said}");
    }

    #[test]
    fn the_queued_data_of_a_cancelled_call_is_dropped() {
        check("1 2 3", "1 2 3");
        check("1 | 2 x1", "1 x1 2");
        // The host has received nothing of the call, so it gets no cancel.
        check("1 2 x1", "2");
        check("1+ 1+ 1 2 x1", "2");
        // The host has received some of the call.
        check("1+ | 1+ 2 1 x1", "1 x1 2");
        check("1+ 2+ | 1 2 x2", "1 1");
    }

    #[test]
    fn the_queue_is_bounded_and_a_host_that_never_reads_is_detached() {
        let host = host();
        let body = Bytes::from(vec![0; CHUNK_BYTES_MAX]);
        let mut sent = 0;
        while host.send(&call(sent, false), body.clone()).is_ok() {
            sent += 1;
            assert!(sent < 1000, "there is no limit");
        }
        assert_eq!(sent as usize, TOOL_HOST_BYTES_MAX / (CHUNK_BYTES_MAX + MESSAGE_BYTES));
        assert!(host.next_now().is_some());
        assert_eq!(host.send(&call(0, false), body.clone()), Ok(()), "there is room again");
        for number in 0..=CONTROL_MESSAGES_MAX as u64 {
            host.send_first(&cancel(1_000_000 + number));
        }
        assert_eq!(host.ending(), Some(DetachReason::TooSlow));
        assert_eq!((host.next_now(), host.queue().bytes), (None, 0));
        assert_eq!(host.send(&call(0, false), body), Ok(()));
        assert_eq!(host.queue().bytes, 0, "nothing is queued for a detached host");
    }

    #[tokio::test]
    async fn the_reader_is_woken_by_data_control_and_the_end() {
        let host = host();
        let (took, mut taken) = tokio::sync::mpsc::unbounded_channel();
        let taking = async {
            while let Ok(sent) = host.next().await {
                took.send(sent.message).unwrap();
            }
        };
        let giving = async {
            tokio::task::yield_now().await;
            for message in [call(1, false), call(2, false)] {
                host.send(&message, Bytes::new()).unwrap();
                assert_eq!(taken.recv().await, Some(message));
            }
            host.send_first(&cancel(1));
            assert_eq!(taken.recv().await, Some(cancel(1)));
            host.end(DetachReason::NodeStops);
        };
        tokio::join!(taking, giving);
    }

    #[test]
    fn callers_are_remembered_once_until_they_end() {
        let host = host();
        let other = SessionId::parse("t").unwrap();
        for session in [&session(), &other, &session()] {
            host.called_by(session);
        }
        host.forget_caller(&other);
        assert_eq!(host.take_callers(), HashSet::from([session()]));
        assert!(host.take_callers().is_empty());
    }
}
