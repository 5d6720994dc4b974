//! Files of a workspace through the HTTP door: a real node, and a real Python that interferes with the
//! directories meanwhile.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod broken_off;
mod conflicts;
mod escapes;
mod limits;
mod lists;
mod transfers;
mod watches;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use windlass_client::files::Expect;
use windlass_client::protocol::api::{CreateSession, FileWritten};
use windlass_client::protocol::policy::{Policy, PolicyRequest};
use windlass_client::protocol::{ErrorCode, SessionId};
use windlass_client::{Client, ClientError};
use windlass_testkit::{TestNode, outside_of_tmp};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// A session in a directory that the test can read, with another directory beside it.
struct Place {
    node: TestNode,
    client: Client,
    session: SessionId,
    /// Not below `/tmp`, which is private in a session.
    home: tempfile::TempDir,
}

impl Place {
    async fn new() -> Self {
        Self::with(|_, _| {}).await
    }

    /// With a policy that the test changes; the test gets the workspace path.
    async fn with(change: impl FnOnce(&Path, &mut PolicyRequest)) -> Self {
        let node = TestNode::start(PROGRAM).await.unwrap();
        let home = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
        let work = home.path().join("work");
        std::fs::create_dir(&work).unwrap();
        std::fs::create_dir(home.path().join("outside")).unwrap();
        std::fs::write(home.path().join("outside/file"), "outside").unwrap();
        let mut create = TestNode::create();
        create.workspace = Some(work.display().to_string());
        change(&work, create.policy.as_mut().unwrap());
        let client = node.client().await.unwrap();
        let session = start(&client, &create).await;
        Self { node, client, session, home }
    }

    fn work(&self) -> PathBuf {
        self.home.path().join("work")
    }

    fn outside(&self) -> PathBuf {
        self.home.path().join("outside")
    }

    async fn put(&self, path: &str, content: &str) -> Result<FileWritten, ClientError> {
        self.put_if(path, content, &Expect::Anything).await
    }

    async fn put_if(
        &self,
        path: &str,
        content: &str,
        expect: &Expect,
    ) -> Result<FileWritten, ClientError> {
        self.client.put_file(&self.session, path, content.to_owned(), expect).await
    }

    async fn get(&self, path: &str) -> Result<String, ClientError> {
        let bytes = self.client.read_file(&self.session, path).await?;
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// Everything in the workspace, read from the file system.
    fn on_disk(&self) -> Vec<String> {
        everything(&self.work())
    }
}

/// A session without placeholders for protected names, which would appear in every list.
async fn start(client: &Client, create: &CreateSession) -> SessionId {
    let mut create = create.clone();
    let policy = create.policy.get_or_insert_default();
    policy.shown.extend(Policy::of(policy.preset.unwrap_or_default()).protected);
    let create = &create;
    client.create_session(create).await.unwrap().session.id
}

/// Every name below a directory, in order. Entries that vanish meanwhile are left out.
fn everything(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound && directory != root => continue,
            Err(error) => panic!("{}: {error}", directory.display()),
        };
        for entry in entries {
            let entry = entry.unwrap();
            found.push(entry.path().strip_prefix(root).unwrap().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

#[track_caller]
fn code<T: std::fmt::Debug>(result: Result<T, ClientError>) -> ErrorCode {
    let error = result.unwrap_err();
    error.api_code().unwrap_or_else(|| panic!("no answer of the node's: {error:?}"))
}
