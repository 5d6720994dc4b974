//! One attached tool host, as the rest of the node sees it: what waits to be sent to it, bounded,
//! and who has called it. Sends nothing itself: a door takes the messages out, one at a time.

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

/// Control messages that may wait for one host: each of its sessions' calls given up at once, with
/// room. A host that lets more of them wait is dropped as too slow.
const CONTROLS_MAX: usize = 8 * 1024;

/// What a waiting message counts beside its body: about what it takes in memory.
const MESSAGE_BYTES: usize = 256;

/// See the module's first lines.
#[derive(Debug)]
pub struct Host {
    id: HostId,
    waiting: Mutex<Waiting>,
    /// Of the one task that takes messages out.
    waker: AtomicWaker,
    callers: Mutex<HashSet<SessionId>>,
}

#[derive(Debug, Default)]
struct Waiting {
    first: VecDeque<ToHost>,
    data: VecDeque<Sent>,
    bytes: usize,
    /// Calls of which some has been taken out, and not all.
    begun: HashSet<CallName>,
    ended: Option<Ending>,
}

/// A message for a host, and its body.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    pub message: ToHost,
    pub body: Bytes,
}

/// Why a host is let go of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It does not read what it is sent.
    TooSlow,
    /// The only session that could call it is over.
    SessionOver,
    /// It said something that is no frame.
    NotAFrame,
    /// It sent text.
    NotBinary,
    /// What it is to be told fits no frame.
    Unspeakable,
    /// It is to look for the next node.
    NodeStops,
}

type CallName = (SessionId, TurnNo, CallNo);

/// More waits for this host than may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{TOOL_HOST_BYTES_MAX} bytes of calls wait for the tool's host already")]
pub struct Full;

impl Host {
    pub fn new(id: HostId) -> Self {
        Self { id, waiting: Mutex::default(), waker: AtomicWaker::new(), callers: Mutex::default() }
    }

    pub fn id(&self) -> HostId {
        self.id
    }

    /// Data: frames of calls, in order. When there is no room, nothing is queued.
    pub fn send(&self, message: &ToHost, body: Bytes) -> Result<(), Full> {
        let bytes = MESSAGE_BYTES + body.len();
        let mut waiting = self.waiting();
        if waiting.bytes + bytes > TOOL_HOST_BYTES_MAX {
            return Err(Full);
        }
        // To one that is let go of nothing is sent; its callers are told so when it is gone.
        if waiting.ended.is_none() {
            waiting.bytes += bytes;
            waiting.data.push_back(Sent { message: message.clone(), body });
        }
        drop(waiting);
        self.waker.wake();
        Ok(())
    }

    /// Control: ahead of all data that has not begun. A cancelled call's own data goes no further,
    /// and a host that has seen nothing of a call does not learn that it was given up.
    pub fn send_first(&self, message: &ToHost) {
        let mut waiting = self.waiting();
        if waiting.ended.is_some() {
            return;
        }
        if let Some(call) = cancelled(message)
            && !waiting.has_seen(&call)
        {
            return;
        }
        if waiting.first.len() == CONTROLS_MAX {
            waiting.end(Ending::TooSlow);
        } else {
            waiting.first.push_back(message.clone());
        }
        drop(waiting);
        self.waker.wake();
    }

    /// Lets go of the host: what waits for it is dropped, and the door closes its connection.
    pub fn end(&self, ending: Ending) {
        self.waiting().end(ending);
        self.waker.wake();
    }

    pub fn ending(&self) -> Option<Ending> {
        self.waiting().ended
    }

    /// The next message to write, or why there will be none. For one task only.
    pub async fn next(&self) -> Result<Sent, Ending> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next message, if one waits.
    pub fn next_now(&self) -> Option<Sent> {
        self.waiting().take().and_then(Result::ok)
    }

    fn poll_next(&self, cx: &Context<'_>) -> Poll<Result<Sent, Ending>> {
        if let Some(next) = self.waiting().take() {
            return Poll::Ready(next);
        }
        self.waker.register(cx.waker());
        // It may have come before the waker was there to be woken.
        self.waiting().take().map_or(Poll::Pending, Poll::Ready)
    }

    /// Sessions that called through this host are remembered, so that they are told when it goes.
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

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callers(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn take(&mut self) -> Option<Result<Sent, Ending>> {
        if let Some(ending) = self.ended {
            return Some(Err(ending));
        }
        if let Some(message) = self.first.pop_front() {
            return Some(Ok(Sent { message, body: Bytes::new() }));
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

    /// Drops what waits of a call; whether the host knows of the call.
    fn has_seen(&mut self, call: &CallName) -> bool {
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

    fn end(&mut self, ending: Ending) {
        *self = Self { ended: Some(self.ended.unwrap_or(ending)), ..Self::default() };
    }
}

fn called(message: &ToHost) -> Option<(&SessionId, TurnNo, CallNo)> {
    match message {
        ToHost::ToolCall { session, turn, call, .. } => Some((session, *turn, *call)),
        _ => None,
    }
}

fn cancelled(message: &ToHost) -> Option<CallName> {
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
    use crate::{Hub, Scope};

    fn host() -> std::sync::Arc<Host> {
        Hub::default().attach(Scope::Shared).unwrap()
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

    fn left(host: &Host) -> Vec<String> {
        let told = |message: &ToHost| match message {
            ToHost::ToolCall { call, more, .. } => {
                format!("{call}{}", if *more { "+" } else { "" })
            }
            ToHost::ToolCancel { call, .. } => format!("x{call}"),
            other => format!("{other:?}"),
        };
        std::iter::from_fn(|| host.next_now()).map(|sent| told(&sent.message)).collect()
    }

    /// Calls by number (`1+`: more follows), cancels (`x1`), and `|` where one message is written.
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
        let waiting = host.waiting();
        assert_eq!((waiting.bytes, waiting.begun.len()), (0, 0), "{said}");
    }

    #[test]
    fn a_call_that_was_given_up_goes_no_further() {
        check("1 2 3", "1 2 3");
        check("1 | 2 x1", "1 x1 2");
        // The host knows nothing of it, and learns nothing.
        check("1 2 x1", "2");
        check("1+ 1+ 1 2 x1", "2");
        // It knows some of it.
        check("1+ | 1+ 2 1 x1", "1 x1 2");
        check("1+ 2+ | 1 2 x2", "1 1");
    }

    #[test]
    fn what_waits_is_bounded_and_a_host_that_never_reads_is_let_go_of() {
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
        for number in 0..=CONTROLS_MAX as u64 {
            host.send_first(&cancel(1_000_000 + number));
        }
        assert_eq!(host.ending(), Some(Ending::TooSlow));
        assert_eq!((host.next_now(), host.waiting().bytes), (None, 0));
        assert_eq!(host.send(&call(0, false), body), Ok(()));
        assert_eq!(host.waiting().bytes, 0, "nothing waits for one that is let go of");
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_data_control_and_the_end() {
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
            host.end(Ending::NodeStops);
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
