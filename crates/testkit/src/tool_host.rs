//! A tool host for tests: offers tools by name, answers each call in a separate task, and reports the calls
//! and cancellations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};
use tokio::task::JoinHandle;
use windlass_client::protocol::SessionId;
use windlass_client::protocol::host::{CancelReason, Declaration, ToolError, ToolOffer, Within};
use windlass_client::tools::{HostMessage, ToolHost, ToolScope};
use windlass_client::{Client, ClientError};

/// The reply of a tool.
pub type ToolResult = Result<Value, ToolError>;

/// One call of a tool.
#[derive(Debug, Clone)]
pub struct TestToolCall {
    pub name: String,
    pub arguments: Value,
    within: Within,
    cancelled: watch::Receiver<bool>,
}

/// A connected tool host. Dropping it closes the connection and drops all running calls.
#[derive(Debug)]
pub struct TestToolHost {
    serving: JoinHandle<()>,
    called: AsyncMutex<mpsc::UnboundedReceiver<String>>,
    cancels: watch::Receiver<Vec<CancelReason>>,
}

impl TestToolCall {
    /// The id of the call, for [`Client::within`].
    pub fn within(&self) -> &Within {
        &self.within
    }

    /// Waits until the call is cancelled.
    pub async fn cancelled(&self) {
        let mut cancelled = self.cancelled.clone();
        // An error means that the host is gone, which cancels its calls too.
        let _ = cancelled.wait_for(|cancelled| *cancelled).await;
    }

    /// An error that the tool raises.
    pub fn error(&self, kind: &str, message: &str) -> ToolError {
        ToolError { message: message.to_owned(), code: None, kind: Some(kind.to_owned()) }
    }
}

impl TestToolHost {
    /// Offers tools with these names to one session. Each tool accepts any arguments.
    pub async fn offer<F>(
        client: &Client,
        session: &SessionId,
        names: &[&str],
        answer: impl Fn(TestToolCall) -> F + Send + 'static,
    ) -> Result<Self, ClientError>
    where
        F: Future<Output = ToolResult> + Send + 'static,
    {
        Self::offer_to(client, &ToolScope::Session(session.clone()), names, answer).await
    }

    pub async fn offer_to<F>(
        client: &Client,
        scope: &ToolScope,
        names: &[&str],
        answer: impl Fn(TestToolCall) -> F + Send + 'static,
    ) -> Result<Self, ClientError>
    where
        F: Future<Output = ToolResult> + Send + 'static,
    {
        let tools = names.iter().map(|name| ToolOffer {
            name: (*name).to_owned(),
            description: format!("The {name} of the tests."),
            input_schema: None,
            deadline_ms: None,
        });
        let mut host = ToolHost::attach(client, scope).await?;
        host.declare(&Declaration { tools: tools.collect() }).await?;
        let (tell_called, called) = mpsc::unbounded_channel();
        let (tell_cancels, cancels) = watch::channel(Vec::new());
        let serving = tokio::spawn(serve(host, answer, tell_called, tell_cancels));
        Ok(Self { serving, called: AsyncMutex::new(called), cancels })
    }

    /// Waits until the tool is called. Reports each call once.
    ///
    /// # Panics
    /// When another tool is called, or the host is gone.
    pub async fn called(&self, name: &str) {
        let called = self.called.lock().await.recv().await;
        assert_eq!(called.as_deref(), Some(name), "another tool was called");
    }

    /// Waits until `count` calls were cancelled, and returns the reasons.
    ///
    /// # Panics
    /// When the host is gone before that.
    pub async fn cancels(&self, count: usize) -> Vec<CancelReason> {
        let mut cancels = self.cancels.clone();
        let cancels = cancels.wait_for(|cancels| cancels.len() >= count).await;
        cancels.expect("the host is connected").clone()
    }
}

impl Drop for TestToolHost {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

type Open = Arc<Mutex<HashMap<Within, watch::Sender<bool>>>>;

async fn serve<F>(
    mut host: ToolHost,
    answer: impl Fn(TestToolCall) -> F,
    called: mpsc::UnboundedSender<String>,
    cancels: watch::Sender<Vec<CancelReason>>,
) where
    F: Future<Output = ToolResult> + Send + 'static,
{
    let open = Open::default();
    loop {
        match host.next().await {
            HostMessage::Call(call) => {
                // Sending fails if the test dropped the host.
                let _ = called.send(call.name.clone());
                let (cancel, cancelled) = watch::channel(false);
                let within = call.call.clone();
                open.lock().unwrap_or_else(PoisonError::into_inner).insert(within.clone(), cancel);
                let arguments = serde_json::from_slice(&call.arguments).unwrap_or_default();
                let asked =
                    TestToolCall { name: call.name, arguments, within: within.clone(), cancelled };
                let (answering, answers, open) = (answer(asked), host.answers(), open.clone());
                tokio::spawn(async move {
                    let answer = answering.await;
                    open.lock().unwrap_or_else(PoisonError::into_inner).remove(&within);
                    answers.give(&within, answer.map(|value| value.to_string().into()));
                });
            }
            HostMessage::Cancel { call, reason } => {
                let open = open.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(cancel) = open.get(&call) {
                    cancel.send_replace(true);
                }
                cancels.send_modify(|cancels| cancels.push(reason));
            }
            HostMessage::Closed(_) => return,
        }
    }
}
