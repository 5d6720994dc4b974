//! One MCP connection to a server, over pipes or HTTP, on `rmcp`. Declares no client capabilities,
//! so the server cannot ask for anything. Watches for changes of the server's tool list.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};
use rmcp::model::{ClientCapabilities, ClientConfig, Implementation, ProtocolVersion};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, NotificationContext, Peer, RunningService,
    ServiceError, serve_client_with_lifecycle,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, RoleClient};
use tokio::sync::Notify;
use windlass_protocol::limits::MESSAGE_BYTES_MAX;

use super::http::PlainHttp;
use super::process::Pipes;

/// How a connection is initialized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    /// As in all revisions but the newest; nearly all servers support it.
    Initialize,
    /// As in the newest revision.
    Discover,
}

/// Why a connection was not established.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BeginError {
    #[error("it did not open an MCP session: {0}")]
    Begin(#[from] Box<ClientInitializeError>),
    #[error("it does not list its tools: {0}")]
    List(#[from] ServiceError),
}

impl BeginError {
    /// How to initialize the next time: a server that refuses one way may support the other.
    pub fn next(&self, tried: Lifecycle) -> Lifecycle {
        match self {
            Self::Begin(error) if matches!(**error, ClientInitializeError::JsonRpcError(_)) => {
                match tried {
                    Lifecycle::Initialize => Lifecycle::Discover,
                    Lifecycle::Discover => Lifecycle::Initialize,
                }
            }
            _ => tried,
        }
    }
}

/// A connection that is being established.
pub(crate) struct PendingConnection {
    beginning: Pin<Box<dyn Future<Output = Result<ClientService, ClientInitializeError>> + Send>>,
    tool_list: ToolListWatch,
}

type ClientService = RunningService<RoleClient, ToolListWatch>;

/// An established connection. Dropping `over` closes it.
pub(crate) struct ServerConnection<Over> {
    pub peer: Peer<RoleClient>,
    pub tool_list: ToolListWatch,
    /// Returns when the server has closed the connection.
    pub over: Over,
}

impl PendingConnection {
    pub fn over_pipes(pipes: Pipes, lifecycle: Lifecycle) -> Self {
        let tool_list = ToolListWatch::default();
        let beginning =
            Box::pin(serve_client_with_lifecycle(tool_list.clone(), pipes, lifecycle.into()));
        Self { beginning, tool_list }
    }

    pub fn over_http(
        uri: &Uri,
        headers: HashMap<HeaderName, HeaderValue>,
        lifecycle: Lifecycle,
    ) -> Self {
        let config = StreamableHttpClientTransportConfig::with_uri(uri.to_string())
            .custom_headers(headers)
            .max_sse_event_size(MESSAGE_BYTES_MAX);
        let transport = StreamableHttpClientTransport::with_client(PlainHttp, config);
        let tool_list = ToolListWatch::default();
        let beginning =
            Box::pin(serve_client_with_lifecycle(tool_list.clone(), transport, lifecycle.into()));
        Self { beginning, tool_list }
    }

    pub async fn connect(self) -> Result<ServerConnection<impl Future<Output = ()>>, BeginError> {
        let service = self.beginning.await.map_err(Box::new)?;
        let peer = service.peer().clone();
        let over = async move {
            // Any result means that the connection has ended.
            let _ = service.waiting().await;
        };
        Ok(ServerConnection { peer, tool_list: self.tool_list, over })
    }
}

impl From<Lifecycle> for ClientLifecycleMode {
    fn from(lifecycle: Lifecycle) -> Self {
        match lifecycle {
            Lifecycle::Initialize => Self::Initialize,
            Lifecycle::Discover => {
                Self::Discover { preferred_versions: vec![ProtocolVersion::LATEST] }
            }
        }
    }
}

/// Receives the server's notifications about its tool list.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolListWatch {
    changed: Arc<Notify>,
}

impl ToolListWatch {
    /// Waits until the server's tool list has changed.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl ClientHandler for ToolListWatch {
    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    fn get_info(&self) -> ClientConfig {
        let about = Implementation::new("windlass", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), about)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}
