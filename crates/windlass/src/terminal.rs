//! The only module that writes to the terminal: output of sessions, notes to the user, tables, and errors
//! with their code and remedy.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use windlass_client::ClientError;
use windlass_protocol::ErrorCode;

#[derive(Debug)]
pub struct Terminal {
    out_colours: Colours,
    err_colours: Colours,
    /// Whether the last printed byte was a newline.
    line: LineState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colours {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineState {
    Fresh,
    Open,
}

/// Colours by meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Error,
    Good,
    Busy,
    Faint,
    Strong,
    Plain,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Self::Error => "31;1",
            Self::Good => "32",
            Self::Busy => "33",
            Self::Faint => "2",
            Self::Strong => "1",
            Self::Plain => "0",
        }
    }
}

impl Terminal {
    pub fn new() -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colours =
            |is_terminal: bool| if is_terminal && !plain { Colours::On } else { Colours::Off };
        Self {
            out_colours: colours(io::stdout().is_terminal()),
            err_colours: colours(io::stderr().is_terminal()),
            line: LineState::Fresh,
        }
    }

    /// A terminal that never uses colours.
    #[cfg(test)]
    pub fn plain() -> Self {
        Self { out_colours: Colours::Off, err_colours: Colours::Off, line: LineState::Fresh }
    }

    /// Writes bytes to standard output.
    pub fn out(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.track_line(bytes);
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }

    /// Writes bytes to standard error.
    pub fn err(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.track_line(bytes);
        io::stderr().lock().write_all(bytes)
    }

    /// Prints a line of the command's result to standard output.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        self.out(format!("{line}\n").as_bytes())
    }

    /// Prints a line for the user to standard error.
    pub fn note(&mut self, line: &str) -> io::Result<()> {
        self.end_line()?;
        let line = paint(self.err_colours, Tone::Faint, line);
        self.err(format!("{line}\n").as_bytes())
    }

    /// Prints a line to standard error in a colour.
    pub fn line(&mut self, tone: Tone, line: &str) -> io::Result<()> {
        self.end_line()?;
        let line = paint(self.err_colours, tone, line);
        self.err(format!("{line}\n").as_bytes())
    }

    /// Prints a prompt. The user types the answer on the same line.
    pub fn prompt(&mut self, text: &str) -> io::Result<()> {
        self.err(text.as_bytes())?;
        self.line = LineState::Fresh;
        Ok(())
    }

    /// Ends the current line if the session left it open.
    pub fn end_line(&mut self) -> io::Result<()> {
        match self.line {
            LineState::Open => self.err(b"\n"),
            LineState::Fresh => Ok(()),
        }
    }

    /// `text` in a colour, if standard output shows colours.
    pub fn tone(&self, tone: Tone, text: &str) -> String {
        paint(self.out_colours, tone, text)
    }

    /// Prints an error with its code and remedy.
    pub fn complain(&mut self, message: &str, code: &str, remedy: &str) -> io::Result<()> {
        self.end_line()?;
        let mut text = format!("{} {message}\n", paint(self.err_colours, Tone::Error, "error:"));
        for (name, value) in [("code:", code), ("help:", remedy)] {
            if !value.is_empty() {
                text += &format!("{} {value}\n", paint(self.err_colours, Tone::Strong, name));
            }
        }
        self.err(text.as_bytes())
    }

    /// Prints why the command failed. A closed output pipe is not a failure.
    pub fn fail(&mut self, error: &anyhow::Error) -> ExitCode {
        let cause = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
        if cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        // If standard error is closed too, the error cannot be reported.
        let _ = match error.downcast_ref::<ClientError>() {
            Some(known) => self.complain(&known.to_string(), known.code(), &remedy(known)),
            None => self.complain(&format!("{error:#}"), "", ""),
        };
        ExitCode::FAILURE
    }

    fn track_line(&mut self, bytes: &[u8]) {
        match bytes.last() {
            Some(b'\n') => self.line = LineState::Fresh,
            Some(_) => self.line = LineState::Open,
            None => {}
        }
    }
}

/// What helps a person. Of these codes, the node's remedy is about the HTTP API, and the message says what is wrong.
fn remedy(error: &ClientError) -> String {
    match error.api_code() {
        Some(ErrorCode::BadRequest | ErrorCode::NotFound) => String::new(),
        _ => error.remedy(),
    }
}

fn paint(colours: Colours, tone: Tone, text: &str) -> String {
    match colours {
        Colours::On => format!("\x1b[{}m{text}\x1b[0m", tone.code()),
        Colours::Off => text.to_owned(),
    }
}

/// Formats rows under headings. Each column is as wide as its widest cell; the last column is not padded.
pub fn table<const COLUMNS: usize>(
    headings: [&str; COLUMNS],
    rows: &[[String; COLUMNS]],
) -> Vec<String> {
    let mut widths = headings.map(|heading| heading.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: [&str; COLUMNS]| {
        let padded: Vec<_> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(headings)];
    lines.extend(rows.iter().map(|row| line(std::array::from_fn(|at| row[at].as_str()))));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "é".to_owned()], ["long".to_owned(), String::new()]];
        assert_eq!(table(["ID", "B"], &rows), ["ID    B", "a     é", "long"]);
    }
}
