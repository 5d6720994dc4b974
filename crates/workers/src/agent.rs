//! The worker that runs an agent: a turn is a prompt, and the agent's engine (codex, claude, or one that speaks ACP)
//! is a child process.
//!
//! - [`engine`] is what every adapter is: a pure machine between the engine's lines and the normalised events.
//!   [`codex`], [`claude`] and [`acp`] are the adapters.
//! - [`recorder`] brings the events of a turn into the promised shape, [`permissions`] decides about permissions.
//!   Both are pure.
//! - [`door`] is the engine's way to the tools of its session.
//! - [`driver`] does the I/O: it owns the engine's [`process`], the turn and the keeper's socket.

mod acp;
#[cfg(test)]
mod adapter_tests;
mod claude;
mod codex;
mod door;
mod driver;
mod engine;
mod permissions;
mod process;
mod prompt;
mod recorder;
mod settings;

use std::ffi::OsString;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use windlass_worker_kit::Link;

use driver::AgentDriver;
use engine::Engine;
use settings::AgentSettings;

const USAGE: &str = "usage: windlass-worker agent SETTINGS_AS_JSON";
const USAGE_STATUS: u8 = 2;

pub fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let settings = arguments.next().and_then(|text| text.into_string().ok());
    let settings = settings.as_deref().map(serde_json::from_str::<AgentSettings>);
    let Some(Ok(settings)) = settings else {
        eprintln!("{USAGE}");
        return ExitCode::from(USAGE_STATUS);
    };
    match run_agent(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("windlass-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_agent(settings: AgentSettings) -> Result<(), Box<dyn std::error::Error>> {
    let link = Link::from_environment()?;
    // Orphans of the engine become children of this process, which can then end them.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // A handler and not `SIG_IGN`, which the engine would inherit. The interrupt also comes as a message.
        let mut sigint = signal(SignalKind::interrupt())?;
        let mut driver = AgentDriver::new(link, adapter(&settings.engine), settings)?;
        driver.run(&mut sigint).await;
        Ok(())
    })
}

fn adapter(engine: &str) -> Box<dyn Engine> {
    match engine {
        "codex" => Box::<codex::Codex>::default(),
        "claude" => Box::<claude::Claude>::default(),
        "opencode" => Box::new(acp::Acp::opencode()),
        "gemini" => Box::new(acp::Acp::gemini()),
        _ => Box::new(acp::Acp::other()),
    }
}
