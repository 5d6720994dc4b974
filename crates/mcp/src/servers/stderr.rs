//! A server's standard error. Its lines go to the node's log, up to a limit per minute. The last
//! line explains why the server ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use windlass_protocol::server_holder::{END_LINE, PID_LINE};

/// Longest line in bytes. The rest of a longer line is left out.
const LINE_BYTES_MAX: usize = 1000;

/// Most lines of one server in the log per `LINES_TIME`. Further lines are counted.
const LINES_MAX: u64 = 100;
const LINES_TIME: Duration = Duration::from_secs(60);

/// What the lines on standard error told.
#[derive(Debug, Default)]
pub(crate) struct ServerStderr {
    pub pid: Option<u32>,
    end: Option<String>,
    last: Option<String>,
}

impl ServerStderr {
    fn take_line(&mut self, line: &str) -> LineOrigin {
        if let Some(pid) = line.split(PID_LINE).nth(1).and_then(|pid| pid.trim().parse().ok()) {
            self.pid = Some(pid);
            return LineOrigin::Holder;
        }
        if let Some(end) = line.split(END_LINE).nth(1) {
            self.end = Some(end.to_owned());
            return LineOrigin::Holder;
        }
        if !line.trim().is_empty() {
            self.last = Some(line.to_owned());
        }
        LineOrigin::Server
    }

    /// How the server ended, and its last line.
    pub fn last(&self) -> Option<String> {
        match (&self.end, &self.last) {
            (Some(end), Some(last)) => Some(format!("{end}: {last}")),
            (Some(one), None) | (None, Some(one)) => Some(one.clone()),
            (None, None) => None,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum LineOrigin {
    Holder,
    Server,
}

/// Reads standard error to its end.
pub(crate) async fn read_stderr(
    said: pipe::Receiver,
    server: String,
    stderr: Arc<Mutex<ServerStderr>>,
) {
    let mut said = BufReader::new(said);
    let mut allowance = Allowance::new(Instant::now());
    while let Some(line) = line(&mut said).await {
        let kind = stderr.lock().unwrap_or_else(PoisonError::into_inner).take_line(&line);
        if kind == LineOrigin::Holder {
            continue;
        }
        let Some(left_out) = allowance.take(Instant::now()) else { continue };
        if left_out > 0 {
            tracing::warn!(
                server,
                left_out,
                "lines of an mcp server's standard error were left out"
            );
        }
        tracing::info!(server, "{line}");
    }
    if allowance.left_out > 0 {
        let left_out = allowance.left_out;
        tracing::warn!(server, left_out, "lines of an mcp server's standard error were left out");
    }
}

/// One line, cut at `LINE_BYTES_MAX`; `None` at the end.
async fn line(said: &mut BufReader<pipe::Receiver>) -> Option<String> {
    let mut kept = Vec::new();
    let mut any = false;
    loop {
        // A read error counts as the end.
        let available = said.fill_buf().await.unwrap_or_default();
        if available.is_empty() {
            return any.then(|| text(&kept));
        }
        any = true;
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = &available[..end.unwrap_or(available.len())];
        kept.extend_from_slice(&part[..part.len().min(LINE_BYTES_MAX - kept.len())]);
        let read = part.len() + usize::from(end.is_some());
        said.consume(read);
        if end.is_some() {
            return Some(text(&kept));
        }
    }
}

/// Replaces control characters, which could move a terminal's cursor.
fn text(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.trim_end().chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect()
}

/// A limit of `LINES_MAX` lines per `LINES_TIME`.
struct Allowance {
    since: Instant,
    lines: u64,
    left_out: u64,
}

impl Allowance {
    fn new(now: Instant) -> Self {
        Self { since: now, lines: 0, left_out: 0 }
    }

    /// If one more line may be logged: the number of lines that were left out since the last
    /// report.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= LINES_TIME {
            (self.since, self.lines) = (now, 0);
        }
        if self.lines == LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_kept_in_part_and_counted() {
        let began = Instant::now();
        let mut allowance = Allowance::new(began);
        let kept = (0..1000).filter(|_| allowance.take(began).is_some()).count();
        assert_eq!(kept as u64, LINES_MAX);
        assert_eq!(allowance.take(began + LINES_TIME), Some(1000 - LINES_MAX));
        assert_eq!(allowance.take(began + LINES_TIME), Some(0));
    }

    #[test]
    fn an_end_is_told_with_the_last_words() {
        let mut stderr = ServerStderr::default();
        assert_eq!(stderr.take_line("windlass-server-pid: 12"), LineOrigin::Holder);
        assert_eq!(stderr.take_line("no module named x"), LineOrigin::Server);
        assert_eq!(stderr.take_line(""), LineOrigin::Server);
        assert_eq!(stderr.take_line("windlass-server-end: exit code 1"), LineOrigin::Holder);
        assert_eq!(stderr.pid, Some(12));
        assert_eq!(stderr.last().unwrap(), "exit code 1: no module named x");
    }

    #[tokio::test]
    async fn a_line_without_end_is_cut_and_read_past() {
        let (to, from) = pipe::pipe().unwrap();
        let write = tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            let mut to = to;
            let long = vec![b'x'; 100_000];
            to.write_all(&long).await.unwrap();
            to.write_all(b"\nsecond \x1b[1m\nthird").await.unwrap();
        });
        let mut said = BufReader::new(from);
        assert_eq!(line(&mut said).await.unwrap().len(), LINE_BYTES_MAX);
        assert_eq!(line(&mut said).await.unwrap(), "second  [1m");
        assert_eq!(line(&mut said).await.unwrap(), "third");
        assert_eq!(line(&mut said).await, None);
        write.await.unwrap();
    }
}
