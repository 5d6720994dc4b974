//! Which package each client is, and at which version. Installing them is up to `packages`.

use std::path::PathBuf;

use anyhow::Result;

use super::ClientUnderTest;
use crate::packages::{Packages, PinnedPackage};

const CODEX: PinnedPackage = PinnedPackage::npm("codex", "@openai/codex", "0.166.0");
const CLAUDE: PinnedPackage = PinnedPackage::npm("claude", "@anthropic-ai/claude-code", "2.1.325");
/// The SDKs' newest speak the revision of 2026-07-28, the older ones that of 2025-11-25.
const PYTHON: PinnedPackage = PinnedPackage::pip("python-sdk", "mcp", "2.3.0");
const PYTHON_OLDER: PinnedPackage = PinnedPackage::pip("python-sdk-older", "mcp", "1.30.0");
const TYPESCRIPT: PinnedPackage =
    PinnedPackage::npm("typescript-sdk", "@modelcontextprotocol/client", "2.4.0");
const TYPESCRIPT_OLDER: PinnedPackage =
    PinnedPackage::npm("typescript-sdk-older", "@modelcontextprotocol/sdk", "1.32.2");

/// Where the clients are, once they are.
#[derive(Debug)]
pub struct Installed {
    packages: Packages,
}

impl Installed {
    pub fn prepare(clients: &[ClientUnderTest]) -> Result<Self> {
        let packages: Vec<PinnedPackage> = clients.iter().map(|client| *package(*client)).collect();
        Ok(Self { packages: Packages::prepare(&packages)? })
    }

    /// The client's version, as it was asked for.
    pub fn version(client: ClientUnderTest) -> &'static str {
        package(client).version
    }

    /// Where the client's packages are.
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
