//! Which package each client is, and at which version. Installing them is up to `packages`.

use std::path::PathBuf;

use anyhow::Result;

use super::Client;
use crate::packages::{Package, Packages};

const CODEX: Package = Package::npm("codex", "@openai/codex", "0.166.0");
const CLAUDE: Package = Package::npm("claude", "@anthropic-ai/claude-code", "2.1.325");
/// The SDKs' newest speak the revision of 2026-07-28, the older ones that of 2025-11-25.
const PYTHON: Package = Package::pip("python-sdk", "mcp", "2.3.0");
const PYTHON_OLDER: Package = Package::pip("python-sdk-older", "mcp", "1.30.0");
const TYPESCRIPT: Package = Package::npm("typescript-sdk", "@modelcontextprotocol/client", "2.4.0");
const TYPESCRIPT_OLDER: Package =
    Package::npm("typescript-sdk-older", "@modelcontextprotocol/sdk", "1.32.2");

/// Where the clients are, once they are.
#[derive(Debug)]
pub struct Installed {
    packages: Packages,
}

impl Installed {
    pub fn prepare(clients: &[Client]) -> Result<Self> {
        let packages: Vec<Package> = clients.iter().map(|client| *package(*client)).collect();
        Ok(Self { packages: Packages::prepare(&packages)? })
    }

    /// The client's version, as it was asked for.
    pub fn version(client: Client) -> &'static str {
        package(client).version
    }

    /// Where the client's packages are.
    pub fn directory(&self, client: Client) -> PathBuf {
        self.packages.directory(package(client))
    }

    /// The directory of `node` and `npm`.
    pub fn node_bin(&self) -> PathBuf {
        self.packages.node_bin()
    }
}

fn package(client: Client) -> &'static Package {
    match client {
        Client::Codex => &CODEX,
        Client::Claude => &CLAUDE,
        Client::PythonSdk => &PYTHON,
        Client::PythonSdkOlder => &PYTHON_OLDER,
        Client::TypescriptSdk => &TYPESCRIPT,
        Client::TypescriptSdkOlder => &TYPESCRIPT_OLDER,
    }
}
