//! Prepares a Python kernel before the first turn by a silent request: puts its output in order, and `tools` into
//! its namespace.

use std::time::Duration;

use serde_json::Value;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::wire::{Channels, KernelArrival, silent_request};
use crate::private_dir::PrivateDir;
use crate::tool_socket::{ToolEvent, serve};

const STREAMS: &str = include_str!("streams.py");
const TOOLS: &str = include_str!("tools.py");

const SETUP_ID: &str = "setup";

/// How long the silent request may take. A kernel that takes longer has no tools.
const SETUP_TIME: Duration = Duration::from_secs(5);

/// What the request found out and set up.
#[derive(Debug, Default)]
pub struct PythonSetup {
    /// The version of ipykernel.
    pub version: Option<String>,
    /// Present if the code has `tools`.
    pub tools: Option<mpsc::Receiver<ToolEvent>>,
}

pub async fn prepare(channels: &mut Channels, dir: &PrivateDir) -> PythonSetup {
    let path = dir.join("tools");
    let Ok(listener) = UnixListener::bind(&path) else { return PythonSetup::default() };
    let code = setup_code(&path.to_string_lossy());
    let version = ("version", "__import__('ipykernel').__version__");
    let streams = ("streams", "__import__('windlass_streams').take_over()");
    let request = silent_request(code, &[version, streams]);
    let Ok(Some(reply)) = timeout(SETUP_TIME, ask(channels, request)).await else {
        return PythonSetup::default();
    };
    let version = &reply["user_expressions"]["version"]["data"]["text/plain"];
    let version = version.as_str().map(|text| text.trim_matches('\'').to_owned());
    let tools = (reply["status"] == "ok").then(|| serve(listener));
    PythonSetup { version, tools }
}

/// Runs both modules, and puts `tools` where IPython's `%who` does not list it. `exit()` ends the turn, not the
/// kernel. JSON texts are Python texts.
fn setup_code(path: &str) -> String {
    format!(
        "def _windlass_setup(path, **sources):\n\
         \x20   import sys, types\n\
         \x20   for name, source in sources.items():\n\
         \x20       module = sys.modules[name] = types.ModuleType(name)\n\
         \x20       exec(compile(source, f'<{{name}}>', 'exec'), module.__dict__)\n\
         \x20   shell = get_ipython()\n\
         \x20   shell.push({{'tools': module.Tools(path)}}, interactive=False)\n\
         \x20   shell.ask_exit = lambda: None\n\
         try:\n\
         \x20   _windlass_setup({}, windlass_streams={}, windlass_tools={})\n\
         finally:\n\
         \x20   del _windlass_setup\n",
        Value::from(path),
        Value::from(STREAMS),
        Value::from(TOOLS),
    )
}

/// The reply to a request, once the kernel is idle again. `None` if the channels are of no more use.
async fn ask(channels: &mut Channels, request: jupyter_protocol::ExecuteRequest) -> Option<Value> {
    channels.execute(SETUP_ID, request).await.ok()?;
    let (mut reply, mut is_idle) = (None, false);
    while reply.is_none() || !is_idle {
        match channels.next().await {
            KernelArrival::Shell(message) if message.parent == SETUP_ID => {
                reply = Some(message.content)
            }
            KernelArrival::IoPub(message) if message.parent == SETUP_ID => {
                is_idle |= message.text("execution_state") == "idle";
            }
            KernelArrival::Broken(_) => return None,
            _ => {}
        }
    }
    reply
}
