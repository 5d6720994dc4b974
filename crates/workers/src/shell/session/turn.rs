//! The state of the running turn.

use std::io;
use std::time::{Duration, Instant};

use windlass_worker_kit::TurnNo;

use super::random_text;
use crate::shell::stopping::Stopping;
use crate::shell::surroundings::TurnCode;

/// How long a turn runs, or is quiet in its terminal, before the worker looks what its processes wait for. The
/// pause doubles up to the maximum. A system call filter that reports each read of descriptor 0 would be exact
/// at once, but makes `while read` over a pipe 27 times slower.
const LOOK_AFTER: Duration = Duration::from_millis(4);
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long input may be on its way through a terminal, where it cannot be seen.
const TYPING_TIME: Duration = Duration::from_millis(50);

/// What bash runs.
#[derive(Debug)]
pub enum ShellTurnStage {
    /// The startup file. The code follows.
    Startup(TurnCode),
    Cell,
    /// The code, as bash runs a file.
    Program,
}

/// The turn that runs, and what is known of its end.
#[derive(Debug)]
pub struct RunningTurn {
    pub turn: TurnNo,
    /// The number of the turn and random characters, which the session's code does not know.
    pub mark: String,
    pub stage: ShellTurnStage,
    pub asked: bool,
    pub stopping: Option<Stopping>,
    /// The exit status, and when it was known.
    pub ended: Option<(u8, Instant)>,
    /// The number of the latest last line, and whether bash has run it.
    pub last_line: u32,
    pub lines_done: bool,
    pub terminal_done: bool,
    /// The status that bash itself ended with, after it has saved its state.
    pub saved: Option<u8>,
    /// How often bash was idle without a report of the turn's end.
    pub unreported: u32,
    pub look: LookTimes,
}

/// When the worker looks what the processes of a turn wait for.
#[derive(Debug)]
pub struct LookTimes {
    pub due: Instant,
    pub pause: Duration,
    /// When the last input was given.
    pub input_at: Option<Instant>,
}

impl LookTimes {
    /// The look is made now. The next one is later.
    pub fn made(&mut self, now: Instant) {
        self.pause = (self.pause * 2).min(LOOK_PAUSE_MAX);
        self.due = now + self.pause;
    }

    /// Whether input may still be on its way through a terminal.
    pub fn is_typing(&self, now: Instant) -> bool {
        self.input_at.is_some_and(|at| now < at + TYPING_TIME)
    }
}

impl RunningTurn {
    pub fn new(turn: TurnNo, stage: ShellTurnStage) -> io::Result<Self> {
        Ok(Self {
            turn,
            mark: format!("{turn}-{}", random_text()?),
            stage,
            asked: false,
            stopping: None,
            ended: None,
            last_line: 0,
            lines_done: false,
            terminal_done: false,
            saved: None,
            unreported: 0,
            look: LookTimes { due: Instant::now() + LOOK_AFTER, pause: LOOK_AFTER, input_at: None },
        })
    }

    pub fn is_program(&self) -> bool {
        matches!(self.stage, ShellTurnStage::Program)
    }

    pub fn was_active(&mut self) {
        self.look.pause = LOOK_AFTER;
        self.look.due = Instant::now() + LOOK_AFTER;
    }
}
