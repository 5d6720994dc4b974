//! How commands reach the node: started when a command needs one, or only looked for.

use std::time::Duration;

use anyhow::Context;
use windlass_client::{Client, ClientError, Dirs, StartNode};
use windlass_protocol::api::CloseQuery;
use windlass_protocol::{ErrorCode, SessionId};

/// A client; the node is started if there is none.
pub async fn started() -> anyhow::Result<Client> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    Ok(Client::connect(
        Dirs::from_env().map_err(ClientError::from)?,
        StartNode::IfAbsent { program },
    )
    .await?)
}

/// A client of a node that runs already; `None` if none does.
pub async fn present() -> anyhow::Result<Option<Client>> {
    match Client::connect(Dirs::from_env().map_err(ClientError::from)?, StartNode::Never).await {
        Ok(client) => Ok(Some(client)),
        Err(ClientError::Unreachable { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Ends a session that this command made. A node that is gone or stopping is not started again
/// for it: it has ended its sessions, or their keepers end them.
pub async fn close(client: &Client, session: &SessionId) -> Result<(), ClientError> {
    let client = client.with_start(StartNode::Never).with_retry_for(Duration::ZERO);
    match client.close_session(session, CloseQuery::default()).await {
        Ok(_) | Err(ClientError::Unreachable { .. } | ClientError::Cut { .. }) => Ok(()),
        Err(ClientError::Api(error))
            if matches!(error.code, ErrorCode::ShuttingDown | ErrorCode::SessionEnded) =>
        {
            Ok(())
        }
        Err(error) => Err(error),
    }
}
