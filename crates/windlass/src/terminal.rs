//! The one place that writes to the terminal: bytes of sessions, notes to the person, tables, and
//! errors with their code and remedy. Decides nothing.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use windlass_client::ClientError;

#[derive(Debug)]
pub struct Terminal {
    out_colours: Colours,
    err_colours: Colours,
    /// Whether the last byte shown ended a line.
    line: Line,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colours {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Fresh,
    Open,
}

/// Colours by what they mean.
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
            line: Line::Fresh,
        }
    }

    /// Without colours, wherever it writes to.
    #[cfg(test)]
    pub fn plain() -> Self {
        Self { out_colours: Colours::Off, err_colours: Colours::Off, line: Line::Fresh }
    }

    /// A session's bytes, as they are.
    pub fn out(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.noted(bytes);
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }

    /// A session's bytes, as they are.
    pub fn err(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.noted(bytes);
        io::stderr().lock().write_all(bytes)
    }

    /// A line of a command's own result.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        self.out(format!("{line}\n").as_bytes())
    }

    /// A line for the person, beside the result.
    pub fn note(&mut self, line: &str) -> io::Result<()> {
        self.end_line()?;
        let line = paint(self.err_colours, Tone::Faint, line);
        self.err(format!("{line}\n").as_bytes())
    }

    /// A prompt that the answer is typed behind.
    pub fn prompt(&mut self, text: &str) -> io::Result<()> {
        self.err(text.as_bytes())?;
        self.line = Line::Fresh;
        Ok(())
    }

    /// Ends a line that a session left open, so that the next word begins one.
    pub fn end_line(&mut self) -> io::Result<()> {
        match self.line {
            Line::Open => self.err(b"\n"),
            Line::Fresh => Ok(()),
        }
    }

    /// `text` in a colour, where standard output shows any.
    pub fn tone(&self, tone: Tone, text: &str) -> String {
        paint(self.out_colours, tone, text)
    }

    /// An error that did not stop the command.
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

    /// Tells why the command failed. A reader of our output that went away is no failure.
    pub fn fail(&mut self, error: &anyhow::Error) -> ExitCode {
        let cause = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
        if cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe) {
            return ExitCode::SUCCESS;
        }
        // Nobody is left to tell when standard error is gone as well.
        let _ = match error.downcast_ref::<ClientError>() {
            Some(known) => self.complain(&known.to_string(), known.code(), &known.remedy()),
            None => self.complain(&format!("{error:#}"), "", ""),
        };
        ExitCode::FAILURE
    }

    fn noted(&mut self, bytes: &[u8]) {
        match bytes.last() {
            Some(b'\n') => self.line = Line::Fresh,
            Some(_) => self.line = Line::Open,
            None => {}
        }
    }
}

fn paint(colours: Colours, tone: Tone, text: &str) -> String {
    match colours {
        Colours::On => format!("\x1b[{}m{text}\x1b[0m", tone.code()),
        Colours::Off => text.to_owned(),
    }
}

/// Rows under their headings, each column as wide as its widest cell; the last is not padded.
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
