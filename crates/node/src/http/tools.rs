//! The tool hosts' door: one WebSocket for each host, one frame in each binary message
//! (`docs/tools.md`). Carries messages between a host and the sessions that call it; which tool is
//! whose is the hub's to say, what becomes of a call its session's.
//!
//! Reading never waits for writing, nor writing for reading: what the host does not read waits in
//! its queue, bounded (`tools::host`), and what it sends goes to the sessions' inboxes.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde::Deserialize;
use tokio::time::timeout;
use utoipa::IntoParams;
use windlass_protocol::api::{API, ApiError, ServerSessions};
use windlass_protocol::frame::{self, EncodeError};
use windlass_protocol::host::{Declaration, FromHost, ToHost};
use windlass_protocol::limits::{FRAME_BYTES_MAX, HOST_DECLARATION_BYTES_MAX, REASON_BYTES_MAX};
use windlass_protocol::text::bounded;
use windlass_protocol::{ErrorCode, Owner};

use super::App;
use super::body::Asked;
use super::reply::{Answer, Refusal, about_to_stop, bad_request, session_id};
use super::sessions::not_live;
use crate::bounds::BudgetShare;
use crate::failure::Failure;
use crate::session::Request;
use crate::session::calls::ResultPart;
use crate::session::idle::PresentClient;
use windlass_tools::host::{DetachReason, OutboundMessage};
use windlass_tools::hub::CheckedDeclaration;
use windlass_tools::{AttachedHost, HostScope};

/// The largest message: one frame, its first length word included.
const MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX + 4;

/// Read at once from a host. It is cleared before each read, so a larger one costs a small message
/// more than it saves a large one.
const READ_BYTES: usize = 64 * 1024;

/// Gathered before it is written; a message alone goes out at once.
const WRITE_BYTES: usize = 128 * 1024;

/// How long a host may take to take its end in and say so itself.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// A declaration up to so long is read here; another thread reads a longer one.
const READ_HERE_BYTES_MAX: usize = 32 * 1024;

/// For whom a host's tools are: a session, all sessions of an owner, or all sessions.
#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct HostQuery {
    /// The session that the tools are for.
    session: Option<String>,
    /// Instead: the owner whose sessions, present and future, the tools are for.
    owner: Option<String>,
    /// Instead: all sessions, or all whose policy names the tool.
    shared: Option<ServerSessions>,
}

/// Attach as tool host: a WebSocket, described in `docs/tools.md`.
#[utoipa::path(get, path = "/v1/tools/host", params(HostQuery),
    responses((status = 101, description = "the tool hosts' protocol follows, in binary messages"),
        (status = "default", body = ApiError)))]
pub(super) async fn attach(
    State(app): State<App>,
    Asked(query): Asked<HostQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<Response> {
    let upgrade = upgrade.map_err(|error| bad_request(error.body_text()))?;
    if app.stop.borrow().is_some() {
        return Err(Refusal(about_to_stop()));
    }
    let scope = scope(&app, query)?;
    let session = match &scope {
        HostScope::Session(id) => app.sessions.find(id),
        HostScope::Owner(_) | HostScope::Shared | HostScope::Everyone => None,
    };
    let client = session.map(|handle| handle.clients.enter());
    let connection = app.serving.bounds.long_connections.claim(1)?;
    let host = app.tools.attach(scope).map_err(Failure::from)?;
    let welcome =
        ToHost::Welcome { api: API.to_string(), node: env!("CARGO_PKG_VERSION").to_owned() };
    host.send_first(&welcome);
    let attachment = Attachment { app, host, _client: client, _connection: connection };
    Ok(upgrade
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX)
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(WRITE_BYTES)
        .on_upgrade(move |socket| async move { attachment.converse(socket).await }))
}

fn scope(app: &App, query: HostQuery) -> Answer<HostScope> {
    match (query.session, query.owner, query.shared) {
        (Some(session), None, None) => {
            let id = session_id(session)?;
            if app.sessions.find(&id).is_none() {
                return Err(not_live(app, &id));
            }
            Ok(HostScope::Session(id))
        }
        (None, Some(owner), None) => {
            let owner = Owner::parse(owner).map_err(|error| bad_request(error.to_string()))?;
            Ok(HostScope::Owner(owner))
        }
        (None, None, Some(ServerSessions::ByPolicy)) => Ok(HostScope::Shared),
        (None, None, Some(ServerSessions::All)) => Ok(HostScope::Everyone),
        _ => Err(bad_request("a tool host is attached to a session, an owner or all, and to one")),
    }
}

/// One host's place in the node. However its connection ends, whoever called it is told.
struct Attachment {
    app: App,
    host: Arc<AttachedHost>,
    /// A session's own host is a client of it.
    _client: Option<PresentClient>,
    _connection: BudgetShare,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.app.tools.detach(self.host.id());
        let host = self.host.id();
        for session in self.host.take_callers() {
            let Some(handle) = self.app.sessions.find(&session) else { continue };
            // Each by itself: none of them waits for another.
            tokio::spawn(async move {
                // A session that has ended meanwhile has no calls.
                let _ = handle.send(Request::ToolHostGone { host }).await;
            });
        }
        self.app.sessions.used();
        self.app.sessions.idle.notify_one();
    }
}

impl Attachment {
    /// The connection, from the upgrade to its end.
    async fn converse(self, socket: WebSocket) {
        let (mut sink, mut stream) = socket.split();
        let ended = {
            let mut writing = pin!(self.write(&mut sink));
            let mut reading = pin!(self.read(&mut stream));
            poll_fn(|cx| {
                // What was read may have made something to write, at once.
                if reading.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                writing.as_mut().poll(cx)
            })
            .await
        };
        let ended = ended.or_else(|| self.host.ending());
        if let Some(ending) = ended {
            let close = close(ending, self.app.stop.borrow().is_some());
            let _ = timeout(CLOSE_WAIT, take_leave(&mut sink, &mut stream, close)).await;
        }
    }

    /// Writes what waits for the host, until it is let go of or cannot be reached: then none.
    async fn write(&self, sink: &mut SplitSink<WebSocket, Message>) -> Option<DetachReason> {
        loop {
            let mut next = match self.host.next().await {
                Ok(sent) => Some(sent),
                Err(ending) => return Some(ending),
            };
            while let Some(sent) = next {
                let message = match binary(&sent) {
                    Ok(message) => message,
                    Err(error) => {
                        // Its callers are told when it is gone.
                        tracing::error!(host = ?self.host.id(), %error, "a tool host cannot be told");
                        return Some(DetachReason::Unencodable);
                    }
                };
                sink.feed(message).await.ok()?;
                next = self.host.next_now();
            }
            sink.flush().await.ok()?;
        }
    }

    /// Takes in what the host says, until it goes or says what cannot be said.
    async fn read(&self, stream: &mut SplitStream<WebSocket>) {
        let mut declaring = Declaring::default();
        while let Some(message) = stream.next().await {
            let heard = match message {
                Ok(Message::Binary(bytes)) => self.hear(bytes, &mut declaring).await,
                Ok(Message::Text(_)) => Err(DetachReason::NotBinary),
                // Pings are answered below, and the end is next.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_)) => Ok(()),
                // Where the connection broke instead, nobody will read why it ends.
                Err(_) => Err(DetachReason::NotAFrame),
            };
            if let Err(ending) = heard {
                return self.host.end(ending);
            }
        }
    }

    async fn hear(&self, bytes: Bytes, declaring: &mut Declaring) -> Result<(), DetachReason> {
        let frame = frame::decode(bytes).map_err(|_| DetachReason::NotAFrame)?;
        match serde_json::from_slice(&frame.header) {
            Ok(FromHost::ToolResult { session, turn, call, ok, more }) => {
                let host = self.host.id();
                let part = ResultPart { host, turn, call, ok, more, body: frame.body };
                let sent = match self.app.sessions.find(&session) {
                    Some(handle) => handle.send(Request::ToolResult(part)).await.is_ok(),
                    None => false,
                };
                if !sent {
                    self.app.metrics.late_tool_result();
                }
            }
            Ok(FromHost::Tools { more }) => {
                declaring.take(&frame.body);
                if !more {
                    self.declare(std::mem::take(declaring)).await;
                }
            }
            // A newer host may say more than this node understands.
            Ok(FromHost::Unknown) => {}
            Err(error) => {
                let message = format!("the frame's header is not what is asked for: {error}");
                self.refuse(Failure::new(ErrorCode::BadRequest, message));
            }
        }
        Ok(())
    }

    async fn declare(&self, declaring: Declaring) {
        let prepared = match declaring.done() {
            Ok(json) if json.len() > READ_HERE_BYTES_MAX => {
                let elsewhere = tokio::task::spawn_blocking(move || prepare(&json)).await;
                elsewhere.unwrap_or_else(|error| {
                    Err(Failure::new(ErrorCode::Internal, error.to_string()))
                })
            }
            Ok(json) => prepare(&json),
            Err(failure) => Err(failure),
        };
        let installed = prepared.and_then(|tools| Ok(self.app.tools.install(&self.host, tools)?));
        match installed {
            Ok(count) => self.host.send_first(&ToHost::ToolsAccepted { count }),
            Err(failure) => self.refuse(failure),
        }
    }

    fn refuse(&self, failure: Failure) {
        let Failure { code, message } = failure;
        // It may repeat what the host said.
        let message = bounded(&message, REASON_BYTES_MAX);
        self.host.send_first(&ToHost::Refused { code, message });
    }
}

/// A declaration as it comes, in one frame or several.
#[derive(Default)]
struct Declaring {
    json: BytesMut,
    /// All of it, also what was not kept.
    bytes: usize,
}

impl Declaring {
    fn take(&mut self, part: &[u8]) {
        self.bytes += part.len();
        if self.bytes <= HOST_DECLARATION_BYTES_MAX {
            self.json.extend_from_slice(part);
        } else {
            self.json = BytesMut::new();
        }
    }

    fn done(self) -> Result<Bytes, Failure> {
        if self.bytes <= HOST_DECLARATION_BYTES_MAX {
            return Ok(self.json.freeze());
        }
        let message = format!(
            "a declaration of {} bytes is over the limit of {HOST_DECLARATION_BYTES_MAX}",
            self.bytes
        );
        Err(Failure::new(ErrorCode::MessageTooLarge, message))
    }
}

fn prepare(json: &[u8]) -> Result<CheckedDeclaration, Failure> {
    let declaration: Declaration = serde_json::from_slice(json).map_err(|error| {
        let message = format!("the declaration is not what is asked for: {error}");
        Failure::new(ErrorCode::BadRequest, message)
    })?;
    Ok(CheckedDeclaration::new(declaration)?)
}

fn binary(sent: &OutboundMessage) -> Result<Message, EncodeError> {
    let mut message = Vec::with_capacity(sent.body.len() + HEAD_BYTES);
    frame::encode(&mut message, &sent.message, &sent.body)?;
    Ok(Message::Binary(message.into()))
}

/// The usual head of a frame, with room.
const HEAD_BYTES: usize = 256;

fn close(ending: DetachReason, node_stops: bool) -> CloseFrame {
    let (code, reason) = match ending {
        DetachReason::NodeStops => (close_code::AWAY, "the node stops"),
        // The next node has it.
        DetachReason::SessionOver if node_stops => (close_code::AWAY, "the node stops"),
        DetachReason::SessionOver => (close_code::NORMAL, "the session is over"),
        DetachReason::TooSlow => (close_code::AGAIN, "the host does not read what it is sent"),
        DetachReason::NotAFrame => (close_code::PROTOCOL, "a message is one whole frame"),
        DetachReason::NotBinary => (close_code::UNSUPPORTED, "messages are binary"),
        DetachReason::Unencodable => (close_code::ERROR, "a message for the host fits no frame"),
    };
    CloseFrame { code, reason: reason.into() }
}

/// Says the end, and waits for the host to say it too: what it sent meanwhile is passed over.
async fn take_leave(
    sink: &mut SplitSink<WebSocket, Message>,
    stream: &mut SplitStream<WebSocket>,
    close: CloseFrame,
) {
    let mut said = false;
    let mut sending = pin!(sink.send(Message::Close(Some(close))));
    poll_fn(|cx| {
        said = said || sending.as_mut().poll(cx).is_ready();
        loop {
            match stream.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}
