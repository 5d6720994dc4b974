//! The package and version of each client. The module `packages` installs them.

use std::path::PathBuf;

use anyhow::Result;

use super::ClientUnderTest;
use crate::packages::{Packages, PinnedPackage};

const CODEX: PinnedPackage = PinnedPackage::npm("codex", "@openai/codex", "0.166.0");
const CLAUDE: PinnedPackage = PinnedPackage::npm("claude", "@anthropic-ai/claude-code", "2.1.325");
/// The newest SDKs speak MCP revision 2026-07-28, the older ones 2025-11-25.
const PYTHON: PinnedPackage = PinnedPackage::pip("python-sdk", "mcp", "2.3.0");
const PYTHON_OLDER: PinnedPackage = PinnedPackage::pip("python-sdk-older", "mcp", "1.30.0");
const TYPESCRIPT: PinnedPackage =
    PinnedPackage::npm("typescript-sdk", "@modelcontextprotocol/client", "2.4.0");
const TYPESCRIPT_OLDER: PinnedPackage =
    PinnedPackage::npm("typescript-sdk-older", "@modelcontextprotocol/sdk", "1.32.2");

/// The installed clients.
#[derive(Debug)]
pub struct Installed {
    packages: Packages,
}

impl Installed {
    pub fn prepare(clients: &[ClientUnderTest]) -> Result<Self> {
        let packages: Vec<PinnedPackage> = clients.iter().map(|client| *package(*client)).collect();
        Ok(Self { packages: Packages::prepare(&packages)? })
    }

    /// The pinned version of the client.
    pub fn version(client: ClientUnderTest) -> &'static str {
        package(client).version
    }

    /// The directory of the client's package.
    pub fn directory(&self, client: ClientUnderTest) -> PathBuf {
        self.packages.directory(package(client))
    }

    /// The directory of `node` and `npm`.
    pub fn node_bin(&self) -> PathBuf {
        self.packages.node_bin()
    }
}

fn package(client: ClientUnderTest) -> &'static PinnedPackage {
    match client {
        ClientUnderTest::Codex => &CODEX,
        ClientUnderTest::Claude => &CLAUDE,
        ClientUnderTest::PythonSdk => &PYTHON,
        ClientUnderTest::PythonSdkOlder => &PYTHON_OLDER,
        ClientUnderTest::TypescriptSdk => &TYPESCRIPT,
        ClientUnderTest::TypescriptSdkOlder => &TYPESCRIPT_OLDER,
    }
}
