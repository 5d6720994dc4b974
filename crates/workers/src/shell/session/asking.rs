//! Input of the session: finds out that the code waits for it, asks the keeper, and passes the answer on.

use std::time::Instant;

use rustix::process::Signal;
use windlass_worker_kit::{Link, WorkerLinkError};

use super::{ShellSession, number_of};
use crate::shell::input::{InputForm, InputIdentity, hides_input};
use crate::shell::look::{self, KnownFiles, WaitsFor};

/// How often bash may be idle without a report of the turn's end, before it is started anew.
const UNREPORTED_MAX: u32 = 4;

impl ShellSession {
    pub(super) fn give_input(&mut self, bytes: &[u8], eof: bool, form: InputForm) {
        let Some(running) = &mut self.turn else { return };
        if !std::mem::take(&mut running.asked) {
            return;
        }
        running.was_active();
        running.look.input_at = Some(Instant::now());
        let mut bytes = bytes.to_vec();
        let to_terminal = self.typed_for_terminal();
        if form == InputForm::Line && !eof && bytes.last() != Some(&b'\n') {
            // An answer is a line, as in the other workers. `read` waits for its end.
            bytes.push(b'\n');
        }
        match &self.bash.terminal {
            Some(terminal) if to_terminal => self.typed.give(&terminal.master, &bytes, eof),
            _ => self.pipe.give(&bytes, eof),
        }
    }

    /// Whether the answer goes to the terminal: always if it is the standard input, else if a program reads
    /// the terminal itself, for example to ask for a password.
    fn typed_for_terminal(&self) -> bool {
        self.size.is_some() || self.waiting() == Some(WaitsFor::Terminal)
    }

    fn input_file(&self) -> Option<InputIdentity> {
        match (&self.bash.terminal, self.size) {
            (Some(terminal), Some(_)) => InputIdentity::of(&terminal.slave),
            _ => InputIdentity::of(&self.pipe.read_end),
        }
    }

    fn input_is_dry(&self) -> bool {
        match (&self.bash.terminal, self.size) {
            (Some(terminal), Some(_)) => self.typed.is_dry(&terminal.slave),
            _ => self.pipe.is_dry(),
        }
    }

    pub(super) fn ask(&mut self, link: &mut Link) -> Result<(), WorkerLinkError> {
        self.pass_on_terminal(link)?;
        let Some(running) = &mut self.turn else { return Ok(()) };
        if running.asked || running.stopping.is_some() || running.ended.is_some() {
            return Ok(());
        }
        running.asked = true;
        let secret =
            self.bash.terminal.as_ref().is_some_and(|terminal| hides_input(&terminal.slave));
        link.stdin_wait(running.turn, &self.terminal.prompt(), secret)
    }

    pub(super) fn look_when_quiet(&mut self, link: &mut Link) -> Result<(), WorkerLinkError> {
        let Some(running) = &mut self.turn else { return Ok(()) };
        let now = Instant::now();
        if now < running.look.due {
            return Ok(());
        }
        running.look.made(now);
        if running.asked {
            return Ok(());
        }
        let typing = running.look.is_typing(now);
        let is_terminal = self.size.is_some();
        match self.waiting() {
            Some(WaitsFor::Terminal) if typing => Ok(()),
            Some(WaitsFor::Input) if typing && is_terminal => Ok(()),
            Some(WaitsFor::Input) if self.input_is_dry() => self.ask(link),
            Some(WaitsFor::Terminal) => self.ask(link),
            Some(WaitsFor::Commands) => self.end_without_report(link),
            _ => Ok(()),
        }
    }

    pub(super) fn waiting(&self) -> Option<WaitsFor> {
        let files = KnownFiles {
            input: self.input_file(),
            terminal: self.bash.terminal.as_ref().and_then(|t| InputIdentity::of(&t.slave)),
            commands: InputIdentity::of(&self.bash.commands_read),
        };
        look::waiting(number_of(self.bash.pid), self.bash.foreground().map(number_of), files)
    }

    /// Bash waits for commands although no end was reported. SIGINT makes bash drop lines that it has not run,
    /// so bash gets the last line once more. If that does not help, the code has broken the mechanism, for
    /// example by closing its descriptors, and bash is started anew.
    fn end_without_report(&mut self, link: &mut Link) -> Result<(), WorkerLinkError> {
        self.take_reports(link)?;
        let Some(running) = &mut self.turn else { return Ok(()) };
        if !self.bash.has_read_commands() || (running.lines_done && running.ended.is_some()) {
            return Ok(());
        }
        running.unreported += 1;
        if running.unreported > UNREPORTED_MAX {
            self.bash.signal(Signal::KILL);
        } else {
            self.end_again();
        }
        Ok(())
    }
}
