//! A tool host: offers functions to the code of sessions over one WebSocket, and answers its calls.
//!
//! The task that uses the host drives the connection: messages arrive and answers leave while it
//! awaits [`ToolHost::next`]. Any task may answer, in any order, through clones of [`ToolAnswers`].
//! Large answers are sent in pieces that alternate, so that a small answer never waits until a
//! large one is completely sent.

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
use crate::door_stream::NodeStream;
use crate::error::ClientError;
use crate::query::RequestPath;

/// The largest message: one frame, its first length word included.
const FRAME_MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX + 4;

/// Size of the read buffer. The WebSocket clears it before each read.
const READ_BYTES: usize = 64 * 1024;

/// Bytes that are collected before a write. A single message is written at once.
const WRITE_BYTES: usize = 128 * 1024;

/// Limit for the bytes of calls that have arrived in part. A node that exceeds it breaks the
/// protocol.
const PARTIAL_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How long the node may take to accept a declaration, or to close the connection.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Which sessions may call the tools.
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

/// A message of the node to a host.
#[derive(Debug, Clone, PartialEq)]
pub enum HostMessage {
    /// The code of a session calls a tool.
    Call(ToolCall),
    /// The session no longer waits for the answer to this call.
    Cancel { call: Within, reason: CancelReason },
    /// The connection has ended; no message follows.
    Closed(DisconnectReason),
}

/// A call of one of the host's tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Identifies the call in its answer and for [`Client::within`].
    pub call: Within,
    pub name: String,
    /// How long the session waits for the answer.
    pub deadline: Duration,
    /// A JSON object of named arguments.
    pub arguments: Bytes,
}

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The node closed the connection. Code 1001: the node stops, and the host can attach to the
    /// next one.
    ByNode { code: u16, reason: String },
    /// The connection broke.
    Cut(String),
}

/// An attached tool host. Dropping it withdraws its tools.
#[derive(Debug)]
pub struct ToolHost {
    socket: WebSocketStream<NodeStream>,
    answers: ToolAnswers,
    /// Messages that arrived during a wait for an answer to a declaration.
    early_messages: VecDeque<HostMessage>,
    /// Calls of which only a part has arrived.
    partial_calls: HashMap<Within, PartialCall>,
    partial_bytes: usize,
    /// Written messages are not flushed yet.
    unflushed: bool,
    closed: Option<DisconnectReason>,
}

#[derive(Debug)]
struct PartialCall {
    name: String,
    arguments: BytesMut,
}

/// One decoded message of the node.
enum SocketMessage {
    Message(HostMessage),
    Accepted(usize),
    Refused(ApiError),
}

impl ToolHost {
    /// Attaches to the node. The host offers no tools yet.
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
            early_messages: VecDeque::new(),
            partial_calls: HashMap::new(),
            partial_bytes: 0,
            unflushed: false,
            closed: None,
        })
    }

    /// Replaces the tools that this host offers, and returns their number. If the node refuses, the
    /// previous tools stay.
    pub async fn declare(&mut self, declaration: &Declaration) -> Result<usize, ClientError> {
        let mut json =
            Bytes::from(serde_json::to_vec(declaration).expect("a declaration always serializes"));
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
                SocketMessage::Message(message) => self.early_messages.push_back(message),
            }
        }
    }

    /// The next message. Answers are sent while this call waits. Cancelling it loses no message.
    pub async fn next(&mut self) -> HostMessage {
        loop {
            if let Some(message) = self.early_messages.pop_front() {
                return message;
            }
            match poll_fn(|cx| self.poll_message(cx)).await {
                SocketMessage::Message(message) => return message,
                // No declaration is open: a newer node sent something that this host does not know.
                SocketMessage::Accepted(_) | SocketMessage::Refused(_) => {}
            }
        }
    }

    /// A handle for answering calls from any task.
    pub fn answers(&self) -> ToolAnswers {
        self.answers.clone()
    }

    /// Writes the queued answers, then closes the connection.
    pub async fn close(mut self) {
        let closing = poll_fn(|cx| {
            ready!(self.poll_write(cx))?;
            Pin::new(&mut self.socket).poll_close(cx)
        });
        // If the node does not take it, the connection is gone already.
        let _ = timeout(ANSWER_WAIT, closing).await;
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<SocketMessage> {
        if let Some(closed) = &self.closed {
            return Poll::Ready(SocketMessage::Message(HostMessage::Closed(closed.clone())));
        }
        // A pending or failed write does not change what is read below.
        let _ = self.poll_write(cx);
        loop {
            let message = match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => self.decode_message(bytes),
                Some(Ok(Message::Close(close))) => {
                    let (code, reason) = close.map_or((1005, String::new()), |close| {
                        (close.code.into(), close.reason.to_string())
                    });
                    Err(DisconnectReason::ByNode { code, reason })
                }
                Some(Ok(_)) => Ok(None),
                Some(Err(fault)) => Err(DisconnectReason::Cut(fault.to_string())),
                None => Err(DisconnectReason::Cut("the connection ended".to_owned())),
            };
            match message {
                Ok(None) => {}
                Ok(Some(message)) => return Poll::Ready(message),
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
        // A newer node may send messages that this host does not understand.
        let Ok(message) = serde_json::from_slice::<ToHost>(&header) else { return Ok(None) };
        Ok(match message {
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
                if let Some(part) = self.partial_calls.remove(&call) {
                    self.partial_bytes -= part.arguments.len();
                    None
                } else {
                    self.answers.forget(&call);
                    Some(SocketMessage::Message(HostMessage::Cancel { call, reason }))
                }
            }
            ToHost::Welcome { .. } => None,
        })
    }

    /// Joins the parts of a call. Returns the call when its last part has arrived.
    fn join(
        &mut self,
        call: Within,
        name: String,
        body: Bytes,
        more: bool,
    ) -> Result<Option<(Within, String, Bytes)>, DisconnectReason> {
        if !more && !self.partial_calls.contains_key(&call) {
            return Ok(Some((call, name, body)));
        }
        let arguments = BytesMut::new();
        let part = self
            .partial_calls
            .entry(call.clone())
            .or_insert_with(|| PartialCall { name, arguments });
        part.arguments.extend_from_slice(&body);
        self.partial_bytes += body.len();
        if part.arguments.len() > MESSAGE_BYTES_MAX || self.partial_bytes > PARTIAL_BYTES_MAX {
            return Err(DisconnectReason::Cut(
                "the node sent more argument bytes than a call may have".to_owned(),
            ));
        }
        if more {
            return Ok(None);
        }
        Ok(self.partial_calls.remove(&call).map(|part| {
            self.partial_bytes -= part.arguments.len();
            (call, part.name, part.arguments.freeze())
        }))
    }

    /// Writes the queued messages; ready when all of them are flushed.
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
            Self::ByNode { code, reason } => {
                write!(f, "the node closed the connection ({code}): {reason}")
            }
            Self::Cut(cause) => f.write_str(cause),
        }
    }
}
