//! How commands reach the node: started when a command needs one, or only looked for.

use anyhow::Context;
use windlass_client::{Client, ClientError, Dirs, StartNode};

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
