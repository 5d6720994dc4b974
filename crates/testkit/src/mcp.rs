//! An MCP client of a test's own: `windlass mcp` as an agent starts it, spoken to line by line, in
//! both lifecycles of the protocol. It answers nothing by itself: what a server asks, the test hears.

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

/// The revision without a beginning: every request says who asks.
pub const STATELESS: &str = "2026-07-28";

/// The revisions that begin with `initialize`.
pub const WITH_A_BEGINNING: [&str; 3] = ["2025-03-26", "2025-06-18", "2025-11-25"];

/// Messages of the bridge that the test has not looked at.
const UNREAD_MAX: usize = 1024;

/// The client's own words in each request of [`STATELESS`].
const META: &str = "io.modelcontextprotocol";

/// A bridge and its client. Dropping it kills the bridge.
#[derive(Debug)]
pub struct McpClient {
    child: Child,
    stdin: Option<ChildStdin>,
    messages: mpsc::Receiver<Value>,
    /// What came while the answer to something else was waited for.
    heard: Vec<Value>,
    requests: u64,
    about: About,
}

/// What a client says of itself.
#[derive(Debug, Clone)]
struct About {
    revision: String,
    name: String,
    capabilities: Value,
}

/// How to start an [`McpClient`].
#[derive(Debug)]
pub struct McpClientBuilder {
    command: Command,
    about: About,
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

    /// Where the agent works; the directory is made if it is not there.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        std::fs::create_dir_all(&path).expect("a directory to work in");
        self.command.current_dir(path);
        self
    }

    /// What the client is called.
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

    /// Lets its sessions come to gates, which is a policy of its own.
    ///
    /// # Panics
    /// When the place of the gates cannot be made.
    #[must_use]
    pub fn with_gates(self) -> Self {
        let gates = gates_dir().expect("a place for gates");
        self.arg("--writable").arg(gates)
    }

    /// Starts the bridge, and begins as the revision has it.
    pub async fn start(self) -> anyhow::Result<McpClient> {
        let mut client = self.spawn()?;
        if client.about.revision != STATELESS {
            client.initialize().await?;
        }
        Ok(client)
    }

    /// Starts the bridge and says nothing to it.
    pub fn spawn(mut self) -> anyhow::Result<McpClient> {
        let mut child = self.command.spawn().context("cannot start the bridge")?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("the bridge has no standard output")?;
        let (heard, messages) = mpsc::channel(UNREAD_MAX);
        // Ends with the bridge's output, or with the client.
        std::thread::spawn(move || listen(stdout, &heard));
        let heard = Vec::new();
        Ok(McpClient { child, stdin, messages, heard, requests: 0, about: self.about })
    }

    /// A shell that becomes the bridge at the first line it is given: so many can be ready to
    /// start at the same instant.
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
        // Nothing but messages may be there; a test sees what else is as a string.
        let message = serde_json::from_str(&line).unwrap_or(Value::String(line));
        if heard.blocking_send(message).is_err() {
            return;
        }
    }
}

impl McpClient {
    /// An agent's bridge to the node of this place, which need not run yet.
    pub fn builder(place: &TestNode) -> McpClientBuilder {
        let mut command = Command::new(place.program());
        command
            .arg("mcp")
            .env("WINDLASS_RUNTIME_DIR", &place.dirs().runtime)
            .env("WINDLASS_STATE_DIR", &place.dirs().state)
            .env("PATH", search_path())
            .current_dir(place.base())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let about = About {
            revision: "2025-11-25".to_owned(),
            name: "agent".to_owned(),
            capabilities: json!({}),
        };
        McpClientBuilder { command, about }.directory(work_of(place))
    }

    /// A client of the revision that most use, in the place's directory to work in.
    pub async fn start(place: &TestNode) -> anyhow::Result<Self> {
        Self::builder(place).start().await
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes one line.
    pub fn write_line(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("the bridge's input is closed")?;
        Ok(stdin.write_all(format!("{line}\n").as_bytes())?)
    }

    /// `initialize`, and what the server answers.
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

    /// Asks, and returns the number of the question.
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

    /// Answers what the server asked.
    pub fn respond(&mut self, id: &Value, result: Value) -> anyhow::Result<()> {
        self.write_line(&json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
    }

    /// The answer to question `id`: its result, or the protocol's error.
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

    /// The first message of this method, of those that nobody has looked at: a question of the
    /// server's, or a word of its.
    pub async fn said(&mut self, method: &str) -> anyhow::Result<Value> {
        self.first(|said| said["method"] == method).await
    }

    /// Whether a message of this method has come and nobody has looked at it.
    pub fn has_said(&mut self, method: &str) -> bool {
        while let Ok(message) = self.messages.try_recv() {
            self.heard.push(message);
        }
        self.heard.iter().any(|said| said["method"] == method)
    }

    /// What a tool answers.
    ///
    /// # Panics
    /// When there is no answer within [`PATIENCE`], or one of the protocol.
    pub async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = json!({"name": tool, "arguments": arguments});
        let answer = self.request("tools/call", params).await;
        let answer = answer.unwrap_or_else(|error| panic!("{tool} has no answer: {error:#}"));
        answer.unwrap_or_else(|error| panic!("{tool} is refused by the protocol: {error}"))
    }

    /// What `run` answers.
    ///
    /// # Panics
    /// As [`McpClient::call`].
    pub async fn run(&mut self, code: &str) -> Value {
        self.call("run", json!({"code": code})).await
    }

    /// What `code` printed; it must end well.
    ///
    /// # Panics
    /// As [`McpClient::call`], and when the code does not end well.
    pub async fn run_ok(&mut self, code: &str) -> String {
        let reply = self.run(code).await;
        assert_eq!(reply["structuredContent"]["outcome"], "ok", "{code:?} gave {reply}");
        output_of(&reply).to_owned()
    }

    /// Closes the bridge's input, as a client does that ends, and waits for the bridge to end.
    pub async fn close(mut self) -> anyhow::Result<ExitStatus> {
        drop(self.stdin.take());
        // Its output ends when it does, and not before: the node it started has let go of it.
        let ended = async { while self.messages.recv().await.is_some() {} };
        tokio::time::timeout(PATIENCE, ended).await.context("the bridge stays")?;
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

/// The directory of a place that agents work in, unless a test says otherwise.
pub fn work_of(place: &TestNode) -> PathBuf {
    let base: &Path = place.base();
    base.join("work")
}

/// The output in a tool's answer, without what is said of it.
pub fn output_of(reply: &Value) -> &str {
    reply["structuredContent"]["output"].as_str().unwrap_or_default()
}

/// The text in a tool's answer, as a model reads it.
pub fn text_of(reply: &Value) -> &str {
    let blocks = reply["content"].as_array();
    let text = blocks.and_then(|blocks| blocks.iter().find(|block| block["type"] == "text"));
    text.and_then(|text| text["text"].as_str()).unwrap_or_default()
}
