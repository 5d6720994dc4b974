//! The door of tool hosts: one WebSocket per host, one frame per binary message (`docs/tools.md`). Carries
//! messages between a host and the sessions that call it. The hub decides which host gets a call, and the
//! session decides what happens to a call.
//!
//! Reading and writing never wait for each other. Messages that the host has not read wait in its bounded
//! queue (`windlass_tools::host`), and messages of the host go to the inboxes of sessions.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
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
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{API, ApiError, ServerSessions};
use windlass_protocol::frame::{self, EncodeError};
use windlass_protocol::host::{Declaration, FromHost, ToHost};
use windlass_protocol::limits::{FRAME_BYTES_MAX, HOST_DECLARATION_BYTES_MAX, REASON_BYTES_MAX};
use windlass_protocol::text::bounded;

use super::App;
use super::body::Asked;
use super::reply::{Answer, Refusal, about_to_stop, bad_request};
use super::sessions::not_live;
use super::tenant::RequestTenant;
use crate::audit::AuditNote;
use crate::bounds::BudgetShare;
use crate::failure::Failure;
use crate::session::Request;
use crate::session::calls::ResultPart;
use crate::session::idle::PresentClient;
use windlass_tools::host::{DetachReason, OutboundMessage};
use windlass_tools::hub::CheckedDeclaration;
use windlass_tools::{AttachedHost, HostScope};

/// Maximum size of a message: one frame, including its first length word.
const MESSAGE_BYTES_MAX: usize = FRAME_BYTES_MAX + 4;

/// Size of the read buffer. It is cleared before each read, so a larger buffer would cost small messages more
/// than it saves large ones.
const READ_BYTES: usize = 64 * 1024;

/// Size of the write buffer. A single message is written at once.
const WRITE_BYTES: usize = 128 * 1024;

/// Maximum time for a host to answer a close.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Maximum number of tools that the record of a declaration names.
const NAMED_TOOLS_MAX: usize = 64;

/// Maximum size of a declaration that is parsed on the node's thread. The blocking pool parses a larger one.
const PARSE_INLINE_BYTES_MAX: usize = 32 * 1024;

/// For whom a host's tools are: a session, all sessions of an owner, or all sessions.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
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
    tenant: RequestTenant,
    Asked(query): Asked<HostQuery>,
    note: AuditNote,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<Response> {
    let upgrade = upgrade.map_err(|error| bad_request(error.body_text()))?;
    if app.stop.borrow().is_some() {
        return Err(Refusal(about_to_stop()));
    }
    let scope = scope(&app, &tenant, query)?;
    note_scope(&note, &scope);
    let session = match &scope {
        HostScope::Session(id) => app.sessions.find(id),
        HostScope::Owner(_) | HostScope::Shared | HostScope::Everyone => None,
    };
    let client = session.map(|handle| handle.clients.enter());
    let bounds = app.serving.bounds.of(tenant.0.as_ref());
    let claimed = [bounds.long_connections.claim(1)?, bounds.tool_hosts.claim(1)?];
    let declared = Mutex::new(bounds.declarations.claim(0)?);
    let host = app.tools.attach(scope).map_err(Failure::from)?;
    let welcome =
        ToHost::Welcome { api: API.to_string(), node: env!("CARGO_PKG_VERSION").to_owned() };
    host.send_first(&welcome);
    let attachment =
        Attachment { app, host, tenant, _client: client, _claimed: claimed, declared, note };
    Ok(upgrade
        .max_message_size(MESSAGE_BYTES_MAX)
        .max_frame_size(MESSAGE_BYTES_MAX)
        .read_buffer_size(READ_BYTES)
        .write_buffer_size(WRITE_BYTES)
        .on_upgrade(move |socket| async move { attachment.converse(socket).await }))
}

/// Adds for whom the tools of a host are.
fn note_scope(note: &AuditNote, scope: &HostScope) {
    match scope {
        HostScope::Session(id) => note.set_session(id.as_str()),
        HostScope::Owner(owner) => note.add("owner", owner.as_str()),
        HostScope::Shared => note.add("shared", "by_policy"),
        HostScope::Everyone => note.add("shared", "all"),
    }
}

fn scope(app: &App, tenant: &RequestTenant, query: HostQuery) -> Answer<HostScope> {
    let scope = match (query.session, query.owner, query.shared) {
        (Some(session), None, None) => HostScope::Session(tenant.session(session)?),
        (None, Some(owner), None) => HostScope::Owner(tenant.owner(owner)?),
        (None, None, Some(ServerSessions::ByPolicy)) => HostScope::Shared,
        (None, None, Some(ServerSessions::All)) => HostScope::Everyone,
        _ => {
            return Err(bad_request(
                "give exactly one of the parameters session, owner and shared",
            ));
        }
    };
    tenant.check_host(&scope)?;
    if let HostScope::Session(id) = &scope
        && app.sessions.find(id).is_none()
    {
        return Err(not_live(app, id));
    }
    Ok(scope)
}

/// The attachment of one host. Dropping it detaches the host and tells the sessions that called it.
struct Attachment {
    app: App,
    host: Arc<AttachedHost>,
    tenant: RequestTenant,
    /// A host of a single session counts as a client of that session.
    _client: Option<PresentClient>,
    /// Its shares of the long-lived connections and of the tool hosts.
    _claimed: [BudgetShare; 2],
    /// Its share of the bytes that all hosts declare.
    declared: Mutex<BudgetShare>,
    /// The record of the attachment, from which those of its tools follow.
    note: AuditNote,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.app.tools.detach(self.host.id());
        self.note.another("tools.withdraw").send();
        let host = self.host.id();
        for session in self.host.take_callers() {
            let Some(handle) = self.app.sessions.find(&session) else { continue };
            // One task each, so that no session waits for another.
            tokio::spawn(async move {
                // An error means that the session has ended and has no calls.
                let _ = handle.send(Request::ToolHostGone { host }).await;
            });
        }
        self.app.sessions.used();
        self.app.sessions.idle.notify_one();
    }
}

impl Attachment {
    /// Serves the connection from the upgrade to its end.
    async fn converse(self, socket: WebSocket) {
        let (mut sink, mut stream) = socket.split();
        let ended = {
            let mut writing = pin!(self.write(&mut sink));
            let mut reading = pin!(self.read(&mut stream));
            poll_fn(|cx| {
                // Reading first, because it may queue a message to write.
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
            let _ = timeout(CLOSE_WAIT, close_handshake(&mut sink, &mut stream, close)).await;
        }
    }

    /// Writes queued messages until the host is detached. Returns `None` if the host cannot be reached.
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
                        // The host's callers are told when it is gone.
                        tracing::error!(host = ?self.host.id(), %error, "cannot encode a message to a tool host");
                        return Some(DetachReason::Unencodable);
                    }
                };
                sink.feed(message).await.ok()?;
                next = self.host.next_now();
            }
            sink.flush().await.ok()?;
        }
    }

    /// Handles messages of the host until it closes the connection or violates the protocol.
    async fn read(&self, stream: &mut SplitStream<WebSocket>) {
        let mut declaring = Declaring::default();
        while let Some(message) = stream.next().await {
            let handled = match message {
                Ok(Message::Binary(bytes)) => self.handle(bytes, &mut declaring).await,
                Ok(Message::Text(_)) => Err(DetachReason::NotBinary),
                // The WebSocket library answers pings, and the stream ends after a close.
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_)) => Ok(()),
                // If the connection broke instead, nobody reads this reason.
                Err(_) => Err(DetachReason::NotAFrame),
            };
            if let Err(ending) = handled {
                return self.host.end(ending);
            }
        }
    }

    async fn handle(&self, bytes: Bytes, declaring: &mut Declaring) -> Result<(), DetachReason> {
        let frame = frame::decode(bytes).map_err(|_| DetachReason::NotAFrame)?;
        match serde_json::from_slice(&frame.header) {
            Ok(FromHost::ToolResult { session, turn, call, ok, more }) => {
                let host = self.host.id();
                let part = ResultPart { host, turn, call, ok, more, body: frame.body };
                let called = self.app.sessions.find(&session);
                let sent = match called.filter(|handle| self.tenant.may_answer(&handle.id)) {
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
            // A newer host may send messages that this node does not know.
            Ok(FromHost::Unknown) => {}
            Err(error) => {
                let message = format!("the frame's header is not a valid message: {error}");
                self.refuse(Failure::new(ErrorCode::BadRequest, message));
            }
        }
        Ok(())
    }

    async fn declare(&self, declaring: Declaring) {
        let prepared = match declaring.done() {
            Ok(json) if json.len() > PARSE_INLINE_BYTES_MAX => {
                let elsewhere = tokio::task::spawn_blocking(move || prepare(&json)).await;
                elsewhere.unwrap_or_else(|error| {
                    Err(Failure::new(ErrorCode::Internal, error.to_string()))
                })
            }
            Ok(json) => prepare(&json),
            Err(failure) => Err(failure),
        };
        let offer = self.note.another("tools.offer");
        let installed = prepared.and_then(|tools| {
            offer.add("tools", tools.names().take(NAMED_TOOLS_MAX).collect::<serde_json::Value>());
            let mut declared = self.declared.lock().unwrap_or_else(PoisonError::into_inner);
            declared.resize(tools.bytes())?;
            Ok(self.app.tools.install(&self.host, tools)?)
        });
        match installed {
            Ok(count) => {
                offer.add("count", count as u64);
                offer.send();
                self.host.send_first(&ToHost::ToolsAccepted { count });
            }
            Err(failure) => {
                offer.refuse(failure.code.as_str());
                self.refuse(failure);
            }
        }
    }

    fn refuse(&self, failure: Failure) {
        let failure = if self.tenant.0.is_some() { failure.for_tenant() } else { failure };
        let Failure { code, message, .. } = failure;
        // The message may contain text of the host.
        let message = bounded(&message, REASON_BYTES_MAX);
        self.host.send_first(&ToHost::Refused { code, message });
    }
}

/// A declaration while it arrives, in one frame or several.
#[derive(Default)]
struct Declaring {
    json: BytesMut,
    /// Size of the declaration so far, including discarded parts.
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
        let message = format!("the declaration does not match the schema: {error}");
        Failure::new(ErrorCode::BadRequest, message)
    })?;
    Ok(CheckedDeclaration::new(declaration)?)
}

fn binary(sent: &OutboundMessage) -> Result<Message, EncodeError> {
    let mut message = Vec::with_capacity(sent.body.len() + HEAD_BYTES);
    frame::encode(&mut message, &sent.message, &sent.body)?;
    Ok(Message::Binary(message.into()))
}

/// Capacity for the head of a frame: larger than most heads.
const HEAD_BYTES: usize = 256;

fn close(ending: DetachReason, node_stops: bool) -> CloseFrame {
    let (code, reason) = match ending {
        DetachReason::NodeStops => (close_code::AWAY, "the node stops"),
        // The next node takes the session over.
        DetachReason::SessionOver if node_stops => (close_code::AWAY, "the node stops"),
        DetachReason::SessionOver => (close_code::NORMAL, "the session is over"),
        DetachReason::TooSlow => (close_code::AGAIN, "the host does not read what it is sent"),
        DetachReason::NotAFrame => (close_code::PROTOCOL, "a message is one whole frame"),
        DetachReason::NotBinary => (close_code::UNSUPPORTED, "messages are binary"),
        DetachReason::Unencodable => (close_code::ERROR, "a message for the host fits no frame"),
    };
    CloseFrame { code, reason: reason.into() }
}

/// Sends a close frame and waits for the host's close frame. Other messages of the host are ignored.
async fn close_handshake(
    sink: &mut SplitSink<WebSocket, Message>,
    stream: &mut SplitStream<WebSocket>,
    close: CloseFrame,
) {
    let mut sent = false;
    let mut sending = pin!(sink.send(Message::Close(Some(close))));
    poll_fn(|cx| {
        sent = sent || sending.as_mut().poll(cx).is_ready();
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
