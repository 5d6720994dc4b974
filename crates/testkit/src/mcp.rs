//! An MCP client for tests: starts `windlass mcp` as an agent does, and exchanges messages line by line, in
//! both lifecycles of the protocol. It answers no request of the server itself; the test does.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::gate::gates_dir;
use crate::node::search_path;
use crate::{PATIENCE, TestNode, within};

/// The revision without `initialize`: every request carries the client's identity.
pub const STATELESS: &str = "2026-07-28";

/// The revisions that begin with `initialize`.
pub const WITH_A_BEGINNING: [&str; 3] = ["2025-03-26", "2025-06-18", "2025-11-25"];

/// Maximum number of messages from the bridge that the test has not read.
const UNREAD_MAX: usize = 1024;

/// Prefix of the client's fields in each request of [`STATELESS`].
const META: &str = "io.modelcontextprotocol";

/// A bridge and its client. Dropping it kills the bridge.
#[derive(Debug)]
pub struct McpClient {
    child: Child,
    stdin: Option<ChildStdin>,
    messages: mpsc::Receiver<Value>,
    /// Messages that arrived while the test waited for another one.
    heard: Vec<Value>,
    requests: u64,
    about: ClientIdentity,
}

/// The identity that a client sends.
#[derive(Debug, Clone)]
struct ClientIdentity {
    revision: String,
    name: String,
    capabilities: Value,
}

/// How to start an [`McpClient`].
#[derive(Debug)]
pub struct McpClientBuilder {
    command: Command,
    about: ClientIdentity,
}

impl McpClientBuilder {
    /// One more argument of `windlass mcp`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.command.arg(arg.into());
        self
    }

    /// One more variable of the bridge's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.command.env(name, value.into());
        self
    }

    /// The working directory of the agent. Creates the directory if it is missing.
    ///
    /// # Panics
    /// When the directory cannot be created.
    #[must_use]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        std::fs::create_dir_all(&path).expect("a directory to work in");
        self.command.current_dir(path);
        self
    }

    /// The name of the client.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.about.name = name.to_owned();
        self
    }

    #[must_use]
    pub fn revision(mut self, revision: &str) -> Self {
        self.about.revision = revision.to_owned();
        self
    }

    #[must_use]
    pub fn capabilities(mut self, capabilities: Value) -> Self {
        self.about.capabilities = capabilities;
        self
    }

    /// Lets the sessions reach gates, by an extra `--writable` policy option.
    ///
    /// # Panics
    /// When the directory for gates cannot be created.
    #[must_use]
    pub fn with_gates(self) -> Self {
        let gates = gates_dir().expect("a directory for gates");
        self.arg("--writable").arg(gates)
    }

    /// Starts the bridge, and sends `initialize` if the revision needs it.
    pub async fn start(self) -> anyhow::Result<McpClient> {
        let mut client = self.spawn()?;
        if client.about.revision != STATELESS {
            client.initialize().await?;
        }
        Ok(client)
    }

    /// Starts the bridge and sends nothing to it.
    pub fn spawn(mut self) -> anyhow::Result<McpClient> {
        let mut child = self.command.spawn().context("cannot start the bridge")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("the bridge has no standard output")?;
        let (heard, messages) = mpsc::channel(UNREAD_MAX);
        // The thread ends with the bridge's output or with the client.
        std::thread::spawn(move || listen(stdout, &heard));
        let heard = Vec::new();
        Ok(McpClient { child, stdin, messages, heard, requests: 0, about: self.about })
    }

    /// Starts a shell that executes the bridge when it reads its first line. So a test can start many bridges
    /// at the same moment.
    pub fn hold(mut self) -> anyhow::Result<McpClient> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "read _; exec \"$0\" \"$@\""]).arg(self.command.get_program());
        shell.args(self.command.get_args());
        for (name, value) in self.command.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        if let Some(directory) = self.command.get_current_dir() {
            shell.current_dir(directory);
        }
        shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        self.command = shell;
        self.spawn()
    }
}

fn listen(stdout: ChildStdout, heard: &mpsc::Sender<Value>) {
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else { return };
        // Every line must be a message. The test sees any other line as a string.
        let message = serde_json::from_str(&line).unwrap_or(Value::String(line));
        if heard.blocking_send(message).is_err() {
            return;
        }
    }
}

impl McpClient {
    /// A bridge of an agent to this node, which need not run yet.
    pub fn builder(node: &TestNode) -> McpClientBuilder {
        let mut command = Command::new(node.program());
        command
            .arg("mcp")
            .env("WINDLASS_RUNTIME_DIR", &node.dirs().runtime)
            .env("WINDLASS_STATE_DIR", &node.dirs().state)
            .env("PATH", search_path())
            .current_dir(node.base())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let about = ClientIdentity {
            revision: "2025-11-25".to_owned(),
            name: "agent".to_owned(),
            capabilities: json!({}),
        };
        McpClientBuilder { command, about }.directory(work_of(node))
    }

    /// A client of the most common revision, in the default working directory.
    pub async fn start(node: &TestNode) -> anyhow::Result<Self> {
        Self::builder(node).start().await
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes one line.
    pub fn write_line(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("the bridge's input is closed")?;
        Ok(stdin.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Sends `initialize` and returns the reply.
    pub async fn initialize(&mut self) -> anyhow::Result<Value> {
        let begin = json!({
            "protocolVersion": self.about.revision,
            "clientInfo": {"name": self.about.name, "version": "1"},
            "capabilities": self.about.capabilities,
        });
        let answer = self.request("initialize", begin).await?;
        let answer = answer.map_err(|error| anyhow::anyhow!("initialize failed: {error}"))?;
        self.notify("notifications/initialized", json!({}))?;
        Ok(answer)
    }

    /// Sends a request and returns its id.
    pub fn send(&mut self, method: &str, mut params: Value) -> anyhow::Result<u64> {
        self.requests += 1;
        if self.about.revision == STATELESS {
            params["_meta"][format!("{META}/protocolVersion")] = json!(self.about.revision);
            let own = json!({"name": self.about.name, "version": "1"});
            params["_meta"][format!("{META}/clientInfo")] = own;
            let capabilities = &self.about.capabilities;
            params["_meta"][format!("{META}/clientCapabilities")] = capabilities.clone();
        }
        let id = self.requests;
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.write_line(&message.to_string())?;
        Ok(id)
    }

    pub fn notify(&mut self, method: &str, params: Value) -> anyhow::Result<()> {
        let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
        self.write_line(&message.to_string())
    }

    /// Answers a request of the server.
    pub fn respond(&mut self, id: &Value, result: Value) -> anyhow::Result<()> {
        self.write_line(&json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
    }

    /// The reply to request `id`: its result, or its protocol error.
    pub async fn answer(&mut self, id: u64) -> anyhow::Result<Result<Value, Value>> {
        let mut answer = self.first(|said| said["id"] == id && said["method"].is_null()).await?;
        match answer["error"].take() {
            Value::Null => Ok(Ok(answer["result"].take())),
            error => Ok(Err(error)),
        }
    }

    pub async fn request(
        &mut self,
        method: &str,
        params: Value,
    ) -> anyhow::Result<Result<Value, Value>> {
        let id = self.send(method, params)?;
        self.answer(id).await
    }

    /// The first unread message with this method: a request or a notification of the server.
    pub async fn said(&mut self, method: &str) -> anyhow::Result<Value> {
        self.first(|said| said["method"] == method).await
    }

    /// Whether there is an unread message with this method.
    pub fn has_said(&mut self, method: &str) -> bool {
        while let Ok(message) = self.messages.try_recv() {
            self.heard.push(message);
        }
        self.heard.iter().any(|said| said["method"] == method)
    }

    /// Calls a tool and returns its result.
    ///
    /// # Panics
    /// When there is no reply within [`PATIENCE`], or the reply is a protocol error.
    pub async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = json!({"name": tool, "arguments": arguments});
        let answer = self.request("tools/call", params).await;
        let answer = answer.unwrap_or_else(|error| panic!("{tool} has no answer: {error:#}"));
        answer.unwrap_or_else(|error| panic!("{tool} is refused by the protocol: {error}"))
    }

    /// Calls the tool `run`.
    ///
    /// # Panics
    /// As [`McpClient::call`].
    pub async fn run(&mut self, code: &str) -> Value {
        self.call("run", json!({"code": code})).await
    }

    /// Runs `code`, which must end `ok`, and returns its output.
    ///
    /// # Panics
    /// As [`McpClient::call`], and when the code does not end `ok`.
    pub async fn run_ok(&mut self, code: &str) -> String {
        let reply = self.run(code).await;
        assert_eq!(reply["structuredContent"]["outcome"], "ok", "{code:?} gave {reply}");
        output_of(&reply).to_owned()
    }

    /// Closes the bridge's input, as an exiting client does, and waits until the bridge exits.
    pub async fn close(mut self) -> anyhow::Result<ExitStatus> {
        drop(self.stdin.take());
        // The output ends exactly when the bridge exits: a node that the bridge started has closed it.
        let ended = async { while self.messages.recv().await.is_some() {} };
        tokio::time::timeout(PATIENCE, ended).await.context("the bridge does not exit")?;
        Ok(self.child.wait()?)
    }

    /// Kills the bridge as a crash would.
    pub fn kill9(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    async fn first(&mut self, wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        if let Some(at) = self.heard.iter().position(&wanted) {
            return Ok(self.heard.remove(at));
        }
        loop {
            match within(PATIENCE, self.messages.recv()).await {
                Some(message) if wanted(&message) => return Ok(message),
                Some(message) => self.heard.push(message),
                None => bail!("the bridge has ended; it said {:?}", self.heard),
            }
        }
    }
}

impl Drop for McpClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The default working directory of agents.
pub fn work_of(node: &TestNode) -> PathBuf {
    let base: &Path = node.base();
    base.join("work")
}

/// The output in a tool's result, without the text around it.
pub fn output_of(reply: &Value) -> &str {
    reply["structuredContent"]["output"].as_str().unwrap_or_default()
}

/// The text of a tool's result, as a model reads it.
pub fn text_of(reply: &Value) -> &str {
    let blocks = reply["content"].as_array();
    let text = blocks.and_then(|blocks| blocks.iter().find(|block| block["type"] == "text"));
    text.and_then(|text| text["text"].as_str()).unwrap_or_default()
}
