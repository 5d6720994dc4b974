//! What passed between the check and one worker, for people who look for the cause of a failure.

use std::collections::VecDeque;
use std::time::Instant;

use windlass_protocol::text::excerpt;

/// Maximum number of lines that are kept from the beginning, and from the end.
const FIRST_LINES: usize = 40;
const LAST_LINES: usize = 80;

/// Maximum number of characters of a header, and of a body.
const HEADER_CHARS: usize = 160;
const BODY_CHARS: usize = 60;

/// Maximum bytes of standard error that are kept.
const STDERR_BYTES: usize = 4096;

/// The direction of a line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    ToWorker,
    FromWorker,
    Stdout,
    Stderr,
    /// A signal, or the end of a process or stream.
    Note,
}

#[derive(Debug)]
pub(crate) struct Transcript {
    began: Instant,
    first: Vec<String>,
    last: VecDeque<String>,
    left_out: usize,
    stderr: VecDeque<u8>,
}

impl Transcript {
    pub fn new(began: Instant) -> Self {
        Self { began, first: vec![], last: VecDeque::new(), left_out: 0, stderr: VecDeque::new() }
    }

    pub fn frame(&mut self, way: Way, header: &[u8], body: &[u8]) {
        let header = excerpt(header, HEADER_CHARS);
        let line = match body {
            [] => header,
            body => format!("{header} + {} bytes {}", body.len(), excerpt(body, BODY_CHARS)),
        };
        self.line(way, &line);
    }

    pub fn raw(&mut self, way: Way, bytes: &[u8]) {
        if matches!(way, Way::Stderr) {
            self.stderr.extend(bytes);
            let surplus = self.stderr.len().saturating_sub(STDERR_BYTES);
            self.stderr.drain(..surplus);
        }
        self.line(way, &format!("{} bytes {}", bytes.len(), excerpt(bytes, BODY_CHARS)));
    }

    pub fn note(&mut self, text: &str) {
        self.line(Way::Note, text);
    }

    fn line(&mut self, way: Way, text: &str) {
        let mark = match way {
            Way::ToWorker => "> ",
            Way::FromWorker => "< ",
            Way::Stdout => "1 ",
            Way::Stderr => "2 ",
            Way::Note => "! ",
        };
        let line = format!("{:8.1} ms {mark}{text}", self.began.elapsed().as_secs_f64() * 1e3);
        if self.first.len() < FIRST_LINES {
            self.first.push(line);
            return;
        }
        self.last.push_back(line);
        if self.last.len() > LAST_LINES {
            self.last.pop_front();
            self.left_out += 1;
        }
    }

    pub fn lines(&self) -> Vec<String> {
        let gap = (self.left_out > 0).then(|| format!("... {} lines left out ...", self.left_out));
        self.first.iter().cloned().chain(gap).chain(self.last.iter().cloned()).collect()
    }

    pub fn stderr(&self) -> String {
        let (front, back) = self.stderr.as_slices();
        String::from_utf8_lossy(&[front, back].concat()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_transcript_keeps_its_beginning_and_its_end() {
        let mut transcript = Transcript::new(Instant::now());
        for number in 0..1000 {
            transcript.note(&format!("line {number}"));
        }
        let lines = transcript.lines();
        assert_eq!(lines.len(), FIRST_LINES + 1 + LAST_LINES);
        assert!(lines[0].ends_with("line 0") && lines[120].ends_with("line 999"));
        assert_eq!(lines[FIRST_LINES], "... 880 lines left out ...");
    }

    #[test]
    fn standard_error_is_kept_to_its_last_bytes() {
        let mut transcript = Transcript::new(Instant::now());
        transcript.raw(Way::Stderr, &[b'a'; 5000]);
        transcript.raw(Way::Stderr, b"end");
        assert_eq!(transcript.stderr().len(), STDERR_BYTES);
        assert!(transcript.stderr().ends_with("aend"));
    }
}
