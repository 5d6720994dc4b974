//! What a server says on its standard error: it goes into the node's log, so much a minute and no
//! more, and the last of it explains an end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use windlass_protocol::server_holder::{END_LINE, PID_LINE};

/// Bytes of a line; the rest of a longer one is left out.
const LINE_BYTES_MAX: usize = 1000;

/// Lines of one server that come into the log in so much time; the rest is counted.
const LINES_MAX: u64 = 100;
const LINES_TIME: Duration = Duration::from_secs(60);

/// What is known from it.
#[derive(Debug, Default)]
pub(crate) struct Words {
    pub pid: Option<u32>,
    end: Option<String>,
    last: Option<String>,
}

impl Words {
    fn hear(&mut self, line: &str) -> Kind {
        if let Some(pid) = line.split(PID_LINE).nth(1).and_then(|pid| pid.trim().parse().ok()) {
            self.pid = Some(pid);
            return Kind::OfHolder;
        }
        if let Some(end) = line.split(END_LINE).nth(1) {
            self.end = Some(end.to_owned());
            return Kind::OfHolder;
        }
        if !line.trim().is_empty() {
            self.last = Some(line.to_owned());
        }
        Kind::OfServer
    }

    /// How it ended, and its own last words.
    pub fn last(&self) -> Option<String> {
        match (&self.end, &self.last) {
            (Some(end), Some(last)) => Some(format!("{end}: {last}")),
            (Some(one), None) | (None, Some(one)) => Some(one.clone()),
            (None, None) => None,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    OfHolder,
    OfServer,
}

/// Reads all that it says, to the end.
pub(crate) async fn listen(said: pipe::Receiver, server: String, words: Arc<Mutex<Words>>) {
    let mut said = BufReader::new(said);
    let mut allowance = Allowance::new(Instant::now());
    while let Some(line) = line(&mut said).await {
        let kind = words.lock().unwrap_or_else(PoisonError::into_inner).hear(&line);
        if kind == Kind::OfHolder {
            continue;
        }
        let Some(left_out) = allowance.take(Instant::now()) else { continue };
        if left_out > 0 {
            tracing::warn!(server, left_out, "an mcp server said more than is kept");
        }
        tracing::info!(server, "{line}");
    }
    if allowance.left_out > 0 {
        let left_out = allowance.left_out;
        tracing::warn!(server, left_out, "an mcp server said more than is kept");
    }
}

/// One line, or as much of it as is kept; none at the end.
async fn line(said: &mut BufReader<pipe::Receiver>) -> Option<String> {
    let mut kept = Vec::new();
    let mut any = false;
    loop {
        // Who cannot be read from says nothing more.
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

/// Without what would move a terminal's cursor.
fn text(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    text.trim_end().chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect()
}

/// So many lines in so much time.
struct Allowance {
    since: Instant,
    lines: u64,
    left_out: u64,
}

impl Allowance {
    fn new(now: Instant) -> Self {
        Self { since: now, lines: 0, left_out: 0 }
    }

    /// Whether one more line may be kept; then, how many before it were not and nobody has told.
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
        let mut words = Words::default();
        assert_eq!(words.hear("windlass-server-pid: 12"), Kind::OfHolder);
        assert_eq!(words.hear("no module named x"), Kind::OfServer);
        assert_eq!(words.hear(""), Kind::OfServer);
        assert_eq!(words.hear("windlass-server-end: exit code 1"), Kind::OfHolder);
        assert_eq!(words.pid, Some(12));
        assert_eq!(words.last().unwrap(), "exit code 1: no module named x");
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
