//! `windlass top`: a full-screen view of the node's sessions. Never starts a node. Owns the loop between terminal, node
//! and model; the model decides.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use rustix::process::{Signal as SignalName, getpid, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};
use windlass_client::Client;
use windlass_protocol::SessionId;
use windlass_protocol::api::SessionOverview;

use crate::commands::attach;
use crate::terminal::Terminal;
use crate::top::columns::TopScope;
use crate::top::feed::{self, SampleFeed, TailFeed};
use crate::top::keys::KeyReader;
use crate::top::model::{SESSIONS_MAX, TopEffect, TopEvent, TopModel};
use crate::top::screen::TopScreen;
use crate::top::view::{self, TopColours, TopLook};
use crate::{duration, exit, node_access};

/// The shortest time between two frames, so that a session that floods its output does not keep this command busy.
const FRAME_EVERY: Duration = Duration::from_millis(50);

/// Maximum number of requests of the user that have not ended.
const REQUESTS_MAX: usize = 8;

/// Bytes of typed keys per read.
const KEY_BYTES: usize = 1024;

/// Watch the sessions of the node on the whole screen
///
/// Shows each session with the memory and the processor time that it uses, and below them the output of the selected
/// session as it comes. Sessions that wait for input come first. Press ? for the keys. Exits with 3 if no node is
/// running.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass top                the sessions of the node
  windlass top --fleet        the sessions of all nodes of the fleet
  windlass top --once         print them once, as text
  windlass top --once --json  print them once, as JSON")]
pub struct Args {
    /// Show the sessions of all nodes of the fleet
    #[arg(long)]
    fleet: bool,
    /// Print the sessions once as text, also to a pipe
    #[arg(long)]
    once: bool,
    /// Print JSON
    #[arg(long, requires = "once")]
    json: bool,
}

pub async fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    if !args.once {
        require_screen()?;
    }
    let Some(client) = node_access::connect_if_running_or_say(terminal, args.json).await? else {
        return Ok(ExitCode::from(exit::NO_NODE));
    };
    let scope = if args.fleet { TopScope::Fleet } else { TopScope::Node };
    if args.once {
        return once(&args, scope, &client, terminal).await;
    }
    // The screen says that the node is away, and asks again.
    let client = client.with_retry_for(Duration::ZERO);
    let look = TopLook { scope, colours: colours() };
    let shell = TopShell::open(client, look).context("the terminal cannot be taken over")?;
    let code = shell.run(terminal).await?;
    Ok(ExitCode::from(code))
}

/// Refuses what is no terminal, or one that cannot move its cursor.
fn require_screen() -> anyhow::Result<()> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        bail!(
            "`windlass top` needs a terminal; for a program use `windlass ps --json` or `windlass top --once --json`"
        );
    }
    let term = std::env::var_os("TERM");
    if term.is_none_or(|term| term.is_empty() || term == "dumb") {
        bail!(
            "this terminal cannot show a full screen (see the variable TERM); use `windlass top --once` or \
             `windlass ps --json`"
        );
    }
    Ok(())
}

fn colours() -> TopColours {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if is_plain { TopColours::Off } else { TopColours::On }
}

async fn once(
    args: &Args,
    scope: TopScope,
    client: &Client,
    terminal: &mut Terminal,
) -> anyhow::Result<ExitCode> {
    let sample = feed::sample(client, scope, None).await?;
    if args.json {
        let list = SessionOverview { sessions: sample.sessions, cursor: None };
        terminal.say(&serde_json::to_string_pretty(&list)?)?;
    } else {
        let mut model = TopModel::new();
        model.update(TopEvent::Sampled(sample.clone()));
        for line in view::plain(&model, scope, now_ms()) {
            terminal.say(&line)?;
        }
    }
    if sample.is_cut {
        terminal.note(&format!("there are more sessions than {SESSIONS_MAX}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn now_ms() -> u64 {
    duration::millis(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default())
}

/// What ends the command from outside, and what tells of the terminal.
struct TopSignals {
    interrupt: Signal,
    terminate: Signal,
    quit: Signal,
    hang_up: Signal,
    resized: Signal,
    suspended: Signal,
    continued: Signal,
}

impl TopSignals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            quit: signal(SignalKind::quit())?,
            hang_up: signal(SignalKind::hangup())?,
            resized: signal(SignalKind::window_change())?,
            suspended: signal(SignalKind::from_raw(SignalName::TSTP.as_raw()))?,
            continued: signal(SignalKind::from_raw(SignalName::CONT.as_raw()))?,
        })
    }

    /// The exit code after a signal that ends the command while the user attaches to a session. Ctrl-C only detaches.
    async fn end_of_attached(&mut self) -> u8 {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return exit::TERMINATED,
                _ = self.quit.recv() => return exit::QUIT,
                _ = self.hang_up.recv() => return exit::HUNG_UP,
                // A process that cannot be stopped goes on.
                _ = self.suspended.recv() => drop(stop_here()),
            }
        }
    }
}

/// Stops this process, as SIGTSTP does if nothing handles it.
fn stop_here() -> io::Result<()> {
    Ok(kill_process(getpid(), SignalName::STOP)?)
}

/// What one turn of the loop waited for.
enum TopWake {
    End(u8),
    Suspended,
    Resized,
    Written(usize),
    Typed(usize),
    FrameDue,
    Event(TopEvent),
}

/// The running command.
struct TopShell {
    client: Client,
    look: TopLook,
    model: TopModel,
    screen: TopScreen,
    keys: KeyReader,
    signals: TopSignals,
    samples: SampleFeed,
    tail: Option<TailFeed>,
    requests: JoinSet<String>,
    frames: Interval,
    /// Whether the screen shows something else than the model.
    is_stale: bool,
}

impl TopShell {
    fn open(client: Client, look: TopLook) -> io::Result<Self> {
        let mut frames = interval(FRAME_EVERY);
        frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The signals come first: once the screen is open, each must restore it.
        let signals = TopSignals::new()?;
        Ok(Self {
            samples: SampleFeed::start(&client, look.scope),
            client,
            look,
            model: TopModel::new(),
            screen: TopScreen::open()?,
            keys: KeyReader::default(),
            signals,
            tail: None,
            requests: JoinSet::new(),
            frames,
            is_stale: true,
        })
    }

    /// Shows the screen until the user quits or a signal comes, and returns the exit code. A terminal that is gone ends
    /// the command like the signal that tells of it.
    async fn run(mut self, terminal: &mut Terminal) -> anyhow::Result<u8> {
        match self.serve(terminal).await {
            Err(error) if error.downcast_ref().is_some_and(is_lost) => Ok(exit::HUNG_UP),
            served => served,
        }
    }

    async fn serve(&mut self, terminal: &mut Terminal) -> anyhow::Result<u8> {
        let mut typed = [0; KEY_BYTES];
        loop {
            let events: Vec<TopEvent> = match self.wake(&mut typed).await? {
                TopWake::End(code) => return Ok(code),
                // The terminal is gone.
                TopWake::Typed(0) => return Ok(exit::HUNG_UP),
                TopWake::Suspended => {
                    self.suspend().await?;
                    continue;
                }
                TopWake::Resized => {
                    self.screen.renew()?;
                    self.is_stale = true;
                    continue;
                }
                TopWake::Written(bytes) => {
                    self.screen.wrote(bytes);
                    continue;
                }
                TopWake::FrameDue => {
                    self.draw()?;
                    continue;
                }
                TopWake::Typed(count) => {
                    self.keys.read(&typed[..count]).into_iter().map(TopEvent::Key).collect()
                }
                TopWake::Event(event) => vec![event],
            };
            self.is_stale = true;
            for event in events {
                for effect in self.model.update(event) {
                    if let Some(code) = self.perform(effect, terminal).await? {
                        return Ok(code);
                    }
                }
            }
        }
    }

    /// Waits for what comes next.
    async fn wake(&mut self, typed: &mut [u8]) -> io::Result<TopWake> {
        let Self { screen, signals, samples, tail, requests, frames, is_stale, .. } = self;
        let TopSignals { resized, suspended, continued, interrupt, terminate, quit, hang_up } =
            signals;
        Ok(tokio::select! {
            _ = interrupt.recv() => TopWake::End(exit::INTERRUPTED),
            _ = terminate.recv() => TopWake::End(exit::TERMINATED),
            _ = quit.recv() => TopWake::End(exit::QUIT),
            _ = hang_up.recv() => TopWake::End(exit::HUNG_UP),
            _ = suspended.recv() => TopWake::Suspended,
            _ = resized.recv() => TopWake::Resized,
            // Whoever stopped this command may have changed the terminal.
            _ = continued.recv() => TopWake::Resized,
            written = screen.write(), if !screen.is_ready() => TopWake::Written(written?),
            count = screen.read(typed) => TopWake::Typed(count?),
            _ = frames.tick(), if *is_stale && screen.is_ready() => TopWake::FrameDue,
            sample = samples.next() => TopWake::Event(match sample {
                Ok(sample) => TopEvent::Sampled(sample),
                Err(cause) => TopEvent::Unanswered(cause),
            }),
            event = next_output(tail) => TopWake::Event(event),
            Some(told) = requests.join_next() => TopWake::Event(TopEvent::Told(
                told.unwrap_or_else(|fault| format!("the request was not sent: {fault}")),
            )),
        })
    }

    /// Gives the terminal back, stops the process, and takes the terminal again when the process continues.
    async fn suspend(&mut self) -> io::Result<()> {
        self.screen.leave();
        stop_here()?;
        self.signals.continued.recv().await;
        self.screen.enter()?;
        self.is_stale = true;
        Ok(())
    }

    fn draw(&mut self) -> io::Result<()> {
        let Self { model, screen, look, .. } = self;
        model.set_page(view::page(model, screen.height()));
        screen.draw(|buffer| view::render(model, *look, now_ms(), buffer))?;
        self.is_stale = false;
        Ok(())
    }

    /// Does what the model says. Returns the exit code if the command ends.
    async fn perform(
        &mut self,
        effect: TopEffect,
        terminal: &mut Terminal,
    ) -> anyhow::Result<Option<u8>> {
        match effect {
            TopEffect::Quit => return Ok(Some(exit::OK)),
            TopEffect::Redraw => self.screen.renew()?,
            TopEffect::Follow(session) => {
                // The feed before ends first, and with it its stream.
                self.tail = None;
                self.tail = session.map(|session| TailFeed::start(&self.client, session));
            }
            TopEffect::Attach(session) => return self.attach(session, terminal).await,
            TopEffect::Interrupt(_) | TopEffect::Close(_)
                if self.requests.len() >= REQUESTS_MAX =>
            {
                let message = "the node has not answered earlier requests".to_owned();
                self.model.update(TopEvent::Told(message));
            }
            TopEffect::Interrupt(session) => {
                self.requests.spawn(feed::interrupt(self.client.clone(), session));
            }
            TopEffect::Close(session) => {
                self.requests.spawn(feed::close(self.client.clone(), session));
            }
        }
        Ok(None)
    }

    /// Leaves the screen to `windlass attach`, and comes back when the user detaches.
    async fn attach(
        &mut self,
        session: SessionId,
        terminal: &mut Terminal,
    ) -> anyhow::Result<Option<u8>> {
        self.screen.leave();
        let followed = self.tail.take().map(|feed| feed.session().clone());
        let attached = tokio::select! {
            code = self.signals.end_of_attached() => return Ok(Some(code)),
            attached = attach::run(attach::Args::of(session), terminal) => attached,
        };
        if let Err(error) = attached {
            let message = format!("{error:#}");
            // The command goes on, so the exit code is not that of the failure.
            let _ = terminal.fail(&error);
            self.model.update(TopEvent::Told(message));
        }
        // The Ctrl-C that has detached the user is over.
        self.signals = TopSignals::new()?;
        self.samples = SampleFeed::start(&self.client, self.look.scope);
        self.tail = followed.map(|session| TailFeed::start(&self.client, session));
        self.screen.enter()?;
        self.is_stale = true;
        Ok(None)
    }
}

/// The next event of the selected session's output. Never returns if none is followed.
async fn next_output(tail: &mut Option<TailFeed>) -> TopEvent {
    match tail {
        Some(feed) => {
            let part = feed.next().await;
            TopEvent::Output(feed.session().clone(), part)
        }
        None => std::future::pending().await,
    }
}

/// Whether the terminal is gone.
fn is_lost(fault: &io::Error) -> bool {
    let lost = [rustix::io::Errno::IO, rustix::io::Errno::NXIO, rustix::io::Errno::PIPE];
    lost.iter().any(|errno| fault.raw_os_error() == Some(errno.raw_os_error()))
}
