//! A tool host: offers functions to the code of sessions over one WebSocket, and answers its calls.
//!
//! Like every connection of this crate it is driven by the task that uses it: messages come and
//! answers leave while [`ToolHost::next`] is waited for. Answers may be given from anywhere, in any
//! order, through clones of [`Answers`]; large ones leave in pieces, in turns, so that a small one
//! never waits for a large one to be through.

mod answers;

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Sink, Stream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};
use windlass_protocol::api::ApiError;
use windlass_protocol::frame::{self, Frame};
use windlass_protocol::host::{CancelReason, Declaration, FromHost, ToHost, Within};
use windlass_protocol::limits::{CHUNK_BYTES_MAX, FRAME_BYTES_MAX, MESSAGE_BYTES_MAX};
use windlass_protocol::{Owner, SessionId};

pub use answers::ToolAnswers;

use crate::call::HttpCall;
use crate::client::Client;
use crate::error::ClientError;
use crate::query::RequestPath;
use crate::stream::LeanStream;

/// The largest message: one frame, its first length word included.
const FRAME_MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX + 4;

/// Read at once. It is cleared before each read.
const READ_BYTES: usize = 64 * 1024;

/// Gathered before it is written; a message alone goes out at once.
const WRITE_BYTES: usize = 128 * 1024;

/// Bytes of calls that have come in part. A node that lets more be open breaks the protocol.
const JOINING_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How long the node may take to take a declaration in, or the host's end.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// For whom the tools are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolScope {
    Session(SessionId),
    /// All sessions created with this owner, present and future.
    Owner(Owner),
    /// All sessions whose policy allows the tool.
    Shared,
    /// All sessions.
    Everyone,
}

/// What the node says to a host.
#[derive(Debug, Clone, PartialEq)]
pub enum HostMessage {
    /// The code of a session calls a tool.
    Call(ToolCall),
    /// Nobody waits for this call's answer any more.
    Cancel { call: Within, reason: CancelReason },
    /// The connection is over; nothing follows.
    Closed(DisconnectReason),
}

/// A call of one of the host's tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Which call: what its answer names, and [`Client::within`] takes.
    pub call: Within,
    pub name: String,
    /// How long an answer is waited for.
    pub deadline: Duration,
    /// A JSON object of named arguments.
    pub arguments: Bytes,
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The node closed it. 1001: it stops, and the next one is to be attached to.
    ByNode { code: u16, reason: String },
    /// It broke.
    Cut(String),
}

/// An attached tool host. Dropping it takes its tools back.
#[derive(Debug)]
pub struct ToolHost {
    socket: WebSocketStream<LeanStream>,
    answers: ToolAnswers,
    /// Messages that came while a declaration was waited for.
    come: VecDeque<HostMessage>,
    /// Calls that have not come whole.
    joining: HashMap<Within, PartialCall>,
    joining_bytes: usize,
    /// What was written is not flushed.
    unflushed: bool,
    closed: Option<DisconnectReason>,
}

#[derive(Debug)]
struct PartialCall {
    name: String,
    arguments: BytesMut,
}

/// One thing that the node said.
enum SocketMessage {
    Message(HostMessage),
    Accepted(usize),
    Refused(ApiError),
}

impl ToolHost {
    /// Attaches to the node; it offers nothing yet.
    pub async fn attach(client: &Client, scope: &ToolScope) -> Result<Self, ClientError> {
        let path = RequestPath::new(&["tools", "host"]);
        let path = match scope {
            ToolScope::Session(session) => path.text("session", Some(session.as_str())),
            ToolScope::Owner(owner) => path.text("owner", Some(owner.as_str())),
            ToolScope::Shared => path.text("shared", Some("by_policy")),
            ToolScope::Everyone => path.text("shared", Some("all")),
        };
        let (stream, read) = client.upgrade(&HttpCall::get(path.done()).upgrading()).await?;
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BYTES)
            .write_buffer_size(WRITE_BYTES)
            .max_message_size(Some(FRAME_MESSAGE_BYTES_MAX))
            .max_frame_size(Some(FRAME_MESSAGE_BYTES_MAX));
        let (read, role) = (read.to_vec(), Role::Client);
        let socket = WebSocketStream::from_partially_read(stream, read, role, Some(config)).await;
        Ok(Self {
            socket,
            answers: ToolAnswers::default(),
            come: VecDeque::new(),
            joining: HashMap::new(),
            joining_bytes: 0,
            unflushed: false,
            closed: None,
        })
    }

    /// Replaces what this host offers; how many tools that is. Where the node refuses it, what was
    /// offered before stays.
    pub async fn declare(&mut self, declaration: &Declaration) -> Result<usize, ClientError> {
        let mut json = Bytes::from(serde_json::to_vec(declaration).expect("it is all JSON"));
        loop {
            let part = json.split_to(json.len().min(CHUNK_BYTES_MAX));
            let more = !json.is_empty();
            self.answers.push_first(&FromHost::Tools { more }, &part);
            if !more {
                break;
            }
        }
        timeout(ANSWER_WAIT, self.declared()).await.unwrap_or_else(|_| {
            let request = "a tool host's declaration".to_owned();
            Err(ClientError::Timeout { request, after: ANSWER_WAIT })
        })
    }

    async fn declared(&mut self) -> Result<usize, ClientError> {
        loop {
            match poll_fn(|cx| self.poll_message(cx)).await {
                SocketMessage::Accepted(count) => return Ok(count),
                SocketMessage::Refused(error) => return Err(ClientError::Api(error)),
                SocketMessage::Message(HostMessage::Closed(closed)) => {
                    return Err(ClientError::Cut { cause: closed.to_string() });
                }
                SocketMessage::Message(message) => self.come.push_back(message),
            }
        }
    }

    /// The next message. Answers leave while it is waited for. A call that is dropped before it
    /// returns loses nothing.
    pub async fn next(&mut self) -> HostMessage {
        loop {
            if let Some(message) = self.come.pop_front() {
                return message;
            }
            match poll_fn(|cx| self.poll_message(cx)).await {
                SocketMessage::Message(message) => return message,
                // Nothing that was asked: a newer node's word.
                SocketMessage::Accepted(_) | SocketMessage::Refused(_) => {}
            }
        }
    }

    /// Answers calls from anywhere.
    pub fn answers(&self) -> ToolAnswers {
        self.answers.clone()
    }

    /// Writes the answers that were given, then ends the connection.
    pub async fn close(mut self) {
        let closing = poll_fn(|cx| {
            ready!(self.poll_write(cx))?;
            Pin::new(&mut self.socket).poll_close(cx)
        });
        // One that cannot be told is gone already.
        let _ = timeout(ANSWER_WAIT, closing).await;
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<SocketMessage> {
        if let Some(closed) = &self.closed {
            return Poll::Ready(SocketMessage::Message(HostMessage::Closed(closed.clone())));
        }
        // Whether it gets through changes nothing for who listens.
        let _ = self.poll_write(cx);
        loop {
            let heard = match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.decode_message(bytes),
                Some(Ok(Message::Close(close))) => {
                    let (code, reason) = close.map_or((1005, String::new()), |close| {
                        (close.code.into(), close.reason.to_string())
                    });
                    Err(DisconnectReason::ByNode { code, reason })
                }
                Some(Ok(_)) => Ok(None),
                Some(Err(fault)) => Err(DisconnectReason::Cut(fault.to_string())),
                None => Err(DisconnectReason::Cut("it ended".to_owned())),
            };
            match heard {
                Ok(None) => {}
                Ok(Some(heard)) => return Poll::Ready(heard),
                Err(closed) => {
                    self.closed = Some(closed.clone());
                    return Poll::Ready(SocketMessage::Message(HostMessage::Closed(closed)));
                }
            }
        }
    }

    fn decode_message(&mut self, bytes: Bytes) -> Result<Option<SocketMessage>, DisconnectReason> {
        let Frame { header, body } =
            frame::decode(bytes).map_err(|fault| DisconnectReason::Cut(fault.to_string()))?;
        // A newer node may say more than this host understands.
        let Ok(said) = serde_json::from_slice::<ToHost>(&header) else { return Ok(None) };
        Ok(match said {
            ToHost::ToolsAccepted { count } => Some(SocketMessage::Accepted(count)),
            ToHost::Refused { code, message } => {
                let remedy = "correct what the message names".to_owned();
                let retryable = code.retryable();
                Some(SocketMessage::Refused(ApiError { code, message, remedy, retryable }))
            }
            ToHost::ToolCall { session, turn, call, name, deadline_ms, more } => {
                let call = Within { session, turn, call };
                let deadline = Duration::from_millis(deadline_ms);
                self.join(call, name, body, more)?.map(|(call, name, arguments)| {
                    let call = ToolCall { call, name, deadline, arguments };
                    SocketMessage::Message(HostMessage::Call(call))
                })
            }
            ToHost::ToolCancel { session, turn, call, reason } => {
                let call = Within { session, turn, call };
                if let Some(part) = self.joining.remove(&call) {
                    self.joining_bytes -= part.arguments.len();
                    None
                } else {
                    self.answers.forget(&call);
                    Some(SocketMessage::Message(HostMessage::Cancel { call, reason }))
                }
            }
            ToHost::Welcome { .. } => None,
        })
    }

    /// Puts a call's parts together; whole, with its last.
    fn join(
        &mut self,
        call: Within,
        name: String,
        body: Bytes,
        more: bool,
    ) -> Result<Option<(Within, String, Bytes)>, DisconnectReason> {
        if !more && !self.joining.contains_key(&call) {
            return Ok(Some((call, name, body)));
        }
        let arguments = BytesMut::new();
        let part = self.joining.entry(call.clone()).or_insert_with(|| PartialCall { name, arguments });
        part.arguments.extend_from_slice(&body);
        self.joining_bytes += body.len();
        if part.arguments.len() > MESSAGE_BYTES_MAX || self.joining_bytes > JOINING_BYTES_MAX {
            return Err(DisconnectReason::Cut("the node sent more of a call than there can be".to_owned()));
        }
        if more {
            return Ok(None);
        }
        Ok(self.joining.remove(&call).map(|part| {
            self.joining_bytes -= part.arguments.len();
            (call, part.name, part.arguments.freeze())
        }))
    }

    /// Writes what waits; ready when all of it is through.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        loop {
            ready!(Pin::new(&mut self.socket).poll_ready(cx))?;
            let Some(message) = self.answers.next(cx) else { break };
            Pin::new(&mut self.socket).start_send(Message::Binary(message))?;
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl std::fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ByNode { code, reason } => write!(f, "the node closed it ({code}): {reason}"),
            Self::Cut(cause) => f.write_str(cause),
        }
    }
}
