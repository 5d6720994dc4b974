//! Shows the fleet of `windlass fleet dev`: a table that is drawn again where it stands, or lines for a pipe and for a
//! terminal that cannot move its cursor. A picture that is the same as the last one is not shown again.

use std::env;
use std::ffi::OsStr;
use std::io::{self, IsTerminal as _};

use rustix::termios::tcgetwinsize;
use serde_json::Value;

use super::picture::{FleetPicture, event};
use crate::terminal::Terminal;

/// The columns of a terminal that does not tell its size.
const COLUMNS_DEFAULT: usize = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScreenForm {
    Table,
    Lines,
    Json,
}

impl ScreenForm {
    /// `term` is the kind of the terminal: the variable `TERM`.
    fn of(json: bool, is_terminal: bool, term: Option<&OsStr>) -> Self {
        let moves_cursor = term.is_some_and(|term| !term.is_empty() && term != "dumb");
        match (json, is_terminal && moves_cursor) {
            (true, _) => Self::Json,
            (false, true) => Self::Table,
            (false, false) => Self::Lines,
        }
    }
}

#[derive(Debug)]
pub(super) struct FleetScreen {
    form: ScreenForm,
    shown: FleetPicture,
    /// Lines of the table that stands above the cursor.
    drawn: usize,
}

impl FleetScreen {
    pub fn new(json: bool) -> Self {
        let term = env::var_os("TERM");
        let form = ScreenForm::of(json, io::stdout().is_terminal(), term.as_deref());
        Self { form, shown: FleetPicture::default(), drawn: 0 }
    }

    /// Says that the fleet can be used: to a person how, to a program where everything is.
    pub fn tell_ready(
        &self,
        terminal: &mut Terminal,
        usage: &[String],
        access: Value,
    ) -> io::Result<()> {
        match self.form {
            ScreenForm::Json => terminal.say(&event("ready", access).to_string()),
            ScreenForm::Table | ScreenForm::Lines => {
                usage.iter().try_for_each(|line| terminal.say(line))
            }
        }
    }

    pub fn show(&mut self, terminal: &mut Terminal, picture: FleetPicture) -> io::Result<()> {
        if picture == self.shown {
            return Ok(());
        }
        match self.form {
            ScreenForm::Table => {
                let lines = picture.lines();
                terminal.out(redrawn(&lines, self.drawn, columns()).as_bytes())?;
                self.drawn = lines.len();
            }
            ScreenForm::Lines => {
                picture.changes(&self.shown).iter().try_for_each(|line| terminal.say(line))?;
            }
            ScreenForm::Json => {
                for change in picture.json_changes(&self.shown) {
                    terminal.say(&change.to_string())?;
                }
            }
        }
        self.shown = picture;
        Ok(())
    }
}

/// The lines in place of those that were drawn before. A line that is cut does not wrap.
fn redrawn(lines: &[String], drawn: usize, columns: usize) -> String {
    // Up to the first line, and clear everything below.
    let mut text = if drawn > 0 { format!("\x1b[{drawn}A\x1b[J") } else { String::new() };
    for line in lines {
        text.extend(line.chars().take(columns));
        text.push('\n');
    }
    text
}

fn columns() -> usize {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => COLUMNS_DEFAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_that_can_move_its_cursor_gets_a_table() {
        for (json, is_terminal, term, form) in [
            (false, true, Some("xterm-256color"), ScreenForm::Table),
            (false, true, Some("dumb"), ScreenForm::Lines),
            (false, true, Some(""), ScreenForm::Lines),
            (false, true, None, ScreenForm::Lines),
            (false, false, Some("xterm-256color"), ScreenForm::Lines),
            (true, true, Some("xterm-256color"), ScreenForm::Json),
        ] {
            assert_eq!(ScreenForm::of(json, is_terminal, term.map(OsStr::new)), form, "{term:?}");
        }
    }

    #[test]
    fn a_table_is_drawn_over_the_one_before_and_never_wraps() {
        let lines = ["NODE  STATE".to_owned(), "n1    älive".to_owned()];
        assert_eq!(redrawn(&lines, 0, 80), "NODE  STATE\nn1    älive\n");
        assert_eq!(redrawn(&lines, 2, 7), "\x1b[2A\x1b[JNODE  S\nn1    ä\n");
    }
}
