//! The four channels to a kernel. Reads messages leniently: a field that is missing or of another type is an
//! absent field, never an error. A message that is not signed with the session's key is dropped.

use std::collections::HashMap;

use futures_util::{Stream, StreamExt};
use jupyter_protocol::{
    ConnectionInfo, ExecuteRequest, Header, InputReply, JupyterMessage, JupyterMessageContent,
    KernelInfoRequest,
};
use jupyter_zmq_client::{
    ClientControlConnection, ClientIoPubConnection, ClientShellConnection, ClientStdinConnection,
    Connection, RawMessage, RuntimeError, create_client_control_connection,
    create_client_iopub_connection, create_client_shell_connection_with_identity,
    create_client_stdin_connection_with_identity, peer_identity_for_session,
};
use serde_json::Value;
use tokio::select;
use zeromq::{Socket, SocketEvent, SocketRecv, ZmqError, ZmqMessage};

/// A message from the kernel.
#[derive(Debug)]
pub struct KernelMessage {
    pub kind: String,
    /// The `msg_id` of the request that caused the message. Empty if the message has no parent.
    pub parent: String,
    pub header: Value,
    pub content: Value,
}

impl KernelMessage {
    /// A text of the content. Empty if the content has no such text.
    pub fn text(&self, field: &str) -> &str {
        self.content[field].as_str().unwrap_or_default()
    }
}

/// What the channels delivered.
#[derive(Debug)]
pub enum KernelArrival {
    Shell(KernelMessage),
    IoPub(KernelMessage),
    Stdin(KernelMessage),
    /// An answer on the control channel. Nothing depends on it.
    Control,
    /// A message that is malformed or has a wrong signature. It was dropped.
    Malformed(String),
    /// A channel is of no more use.
    Broken(String),
}

/// Reports that the kernel closed a channel.
type Monitor = Box<dyn Stream<Item = SocketEvent> + Unpin>;

/// The channels to one kernel.
pub struct Channels {
    shell: ClientShellConnection,
    iopub: ClientIoPubConnection,
    stdin: ClientStdinConnection,
    control: ClientControlConnection,
    shell_monitor: Monitor,
    iopub_monitor: Monitor,
}

impl Channels {
    /// Connects to a kernel that listens.
    pub async fn connect(info: &ConnectionInfo, session: &str) -> Result<Self, RuntimeError> {
        let identity = peer_identity_for_session(session)?;
        let mut iopub = create_client_iopub_connection(info, "", session).await?;
        let mut shell =
            create_client_shell_connection_with_identity(info, session, identity.clone()).await?;
        let stdin = create_client_stdin_connection_with_identity(info, session, identity).await?;
        let control = create_client_control_connection(info, session).await?;
        let shell_monitor = Box::new(shell.socket.monitor());
        let iopub_monitor = Box::new(iopub.socket.monitor());
        Ok(Self { shell, iopub, stdin, control, shell_monitor, iopub_monitor })
    }

    /// The next message of any channel. Cancelling loses nothing.
    pub async fn next(&mut self) -> KernelArrival {
        select! {
            got = self.iopub.socket.recv() => arrival(got, &self.iopub, KernelArrival::IoPub),
            got = self.shell.socket.recv() => arrival(got, &self.shell, KernelArrival::Shell),
            got = self.stdin.socket.recv() => arrival(got, &self.stdin, KernelArrival::Stdin),
            got = self.control.socket.recv() => arrival(got, &self.control, |_| KernelArrival::Control),
            () = closed(&mut self.shell_monitor) => {
                KernelArrival::Broken("the kernel closed its shell channel".to_owned())
            }
        }
    }

    /// The next message on the output channel that has already come. `None` if there is none.
    pub async fn next_output_at_hand(&mut self) -> Option<KernelArrival> {
        // The reactor learns about new bytes only when this task yields.
        tokio::task::yield_now().await;
        select! {
            biased;
            got = self.iopub.socket.recv() => Some(arrival(got, &self.iopub, KernelArrival::IoPub)),
            () = std::future::ready(()) => None,
        }
    }

    /// The next message on the output channel of a kernel that has ended. `None` at the end of the channel.
    pub async fn next_output_to_end(&mut self) -> Option<KernelArrival> {
        select! {
            biased;
            got = self.iopub.socket.recv() => Some(arrival(got, &self.iopub, KernelArrival::IoPub)),
            () = closed(&mut self.iopub_monitor) => None,
        }
    }

    pub async fn execute(&mut self, id: &str, request: ExecuteRequest) -> Result<(), RuntimeError> {
        self.shell.send(request_message(id, request)).await
    }

    /// Asks for the kernel's description. The kernel answers it in order with its other requests.
    pub async fn ask_info(&mut self, id: &str) -> Result<(), RuntimeError> {
        self.shell.send(request_message(id, KernelInfoRequest {})).await
    }

    pub async fn answer_input(
        &mut self,
        request: &Value,
        value: String,
    ) -> Result<(), RuntimeError> {
        let reply = InputReply { value, ..InputReply::default() };
        let mut message = JupyterMessage::new(reply, None);
        message.parent_header = Some(parent_header(request));
        self.stdin.send(message).await
    }

    pub async fn send_control(
        &mut self,
        id: &str,
        content: impl Into<JupyterMessageContent>,
    ) -> Result<(), RuntimeError> {
        self.control.send(request_message(id, content)).await
    }
}

/// A silent request that evaluates expressions after the code.
pub fn silent_request(code: String, expressions: &[(&str, &str)]) -> ExecuteRequest {
    let owned = |(name, text): &(&str, &str)| (name.to_string(), text.to_string());
    let expressions: HashMap<String, String> = expressions.iter().map(owned).collect();
    ExecuteRequest {
        code,
        silent: true,
        store_history: false,
        user_expressions: Some(expressions),
        allow_stdin: false,
        stop_on_error: false,
    }
}

async fn closed(monitor: &mut Monitor) {
    while let Some(event) = monitor.next().await {
        if matches!(event, SocketEvent::Disconnected(_)) {
            return;
        }
    }
    std::future::pending().await
}

fn request_message(id: &str, content: impl Into<JupyterMessageContent>) -> JupyterMessage {
    let mut message = JupyterMessage::new(content, None);
    message.header.msg_id = id.to_owned();
    message.header.username = "windlass".to_owned();
    message
}

fn arrival<S>(
    received: Result<ZmqMessage, ZmqError>,
    connection: &Connection<S>,
    place: impl Fn(KernelMessage) -> KernelArrival,
) -> KernelArrival {
    let message = match received {
        Ok(message) => message,
        Err(error) => {
            return KernelArrival::Broken(format!("the kernel broke the ZeroMQ protocol: {error}"));
        }
    };
    let raw = match RawMessage::from_multipart(message, &connection.mac) {
        Ok(raw) => raw,
        Err(RuntimeError::VerifyError(_) | RuntimeError::DecodeError(_)) => {
            return KernelArrival::Malformed("it has a wrong signature".to_owned());
        }
        Err(error) => return KernelArrival::Malformed(error.to_string()),
    };
    let part = |at: usize| serde_json::from_slice::<Value>(&raw.jparts[at]);
    let (Ok(header), Ok(content)) = (part(0), part(3)) else {
        return KernelArrival::Malformed("it is not JSON".to_owned());
    };
    let parent = part(1).unwrap_or_default();
    place(KernelMessage {
        kind: header["msg_type"].as_str().unwrap_or_default().to_owned(),
        parent: parent["msg_id"].as_str().unwrap_or_default().to_owned(),
        header,
        content,
    })
}

/// The header of the kernel's request, for the parent of a reply.
fn parent_header(request: &Value) -> Header {
    let of_reply = JupyterMessage::new(InputReply::default(), None).header;
    let text = |field: &str, otherwise: String| {
        request[field].as_str().map_or(otherwise, ToOwned::to_owned)
    };
    Header {
        msg_id: text("msg_id", String::new()),
        username: text("username", of_reply.username),
        session: text("session", of_reply.session),
        date: of_reply.date,
        msg_type: text("msg_type", "input_request".to_owned()),
        version: text("version", of_reply.version),
    }
}
