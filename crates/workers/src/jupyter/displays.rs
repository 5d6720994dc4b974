//! Shows the kernel's output messages: streams, results, displays, errors and pages.

use serde_json::Value;
use windlass_protocol::worker::FromWorker;
use windlass_protocol::{Stream, TurnNo};
use windlass_worker_kit::outgoing;

use super::media::{HTML, PLAIN, plain_text, richest, without_ansi};
use super::turn::{ReplyStatus, TurnEvent};
use super::wire::KernelMessage;
use crate::outbox::Outbox;

/// Maximum number of displays of one turn that a later `clear_output` can replace.
const REPLACEABLE_MAX: usize = 256;

/// The names of displays, and the traceback of a reply.
#[derive(Debug, Default)]
pub struct Displays {
    /// Number of displays that the worker has named.
    named: u64,
    /// The names of the turn's displays that the kernel did not name.
    of_turn: Vec<String>,
    /// The display of the turn that comes next. Lower than the number of names after a `clear_output`.
    next: usize,
    /// Whether the kernel sends the values of expressions as displays.
    shows_values: bool,
    /// The traceback of the turn's reply, for kernels that do not publish it.
    reply_traceback: String,
}

impl Displays {
    pub fn new(shows_values: bool) -> Self {
        Self { shows_values, ..Self::default() }
    }

    pub fn begin_turn(&mut self) {
        self.of_turn.clear();
        self.next = 0;
        self.reply_traceback.clear();
    }

    /// `clear_output`: printed text stays, and the turn's next displays replace its earlier ones.
    pub fn clear(&mut self) {
        self.next = 0;
    }

    /// Shows a message of the running turn. Returns the error if the message is one.
    pub fn show(
        &mut self,
        turn: TurnNo,
        message: &KernelMessage,
        outbox: &mut Outbox,
    ) -> Option<TurnEvent> {
        let bundle = &message.content["data"];
        match message.kind.as_str() {
            "stream" => {
                outbox.output(turn, stream_of(message), false, message.text("text").as_bytes());
            }
            "execute_result" => {
                show_value(turn, bundle, outbox);
            }
            "display_data" if self.shows_values && is_text_value(message) => {
                show_value(turn, bundle, outbox);
            }
            "display_data" => self.show_display(turn, message, false, outbox),
            "update_display_data" => self.show_display(turn, message, true, outbox),
            "error" => {
                let traceback = with_line_end(traceback_of(&message.content));
                outbox.output(turn, Stream::Traceback, false, traceback.as_bytes());
                let (name, message) = error_of(&message.content);
                return Some(TurnEvent::Error { name, message });
            }
            _ => {}
        }
        None
    }

    /// Shows a message of a turn that is over, as text: a display cannot name an earlier turn.
    pub fn show_late(&self, turn: TurnNo, message: &KernelMessage, outbox: &mut Outbox) {
        let bundle = &message.content["data"];
        let (stream, text) = match message.kind.as_str() {
            "stream" => (stream_of(message), message.text("text").to_owned()),
            "execute_result" => {
                let text = plain_text(bundle).map(|text| with_line_end(without_ansi(&text)));
                (Stream::Result, text.unwrap_or_default())
            }
            "display_data" | "update_display_data" => {
                (Stream::Stdout, plain_text(bundle).map(with_line_end).unwrap_or_default())
            }
            "error" => (Stream::Stderr, with_line_end(traceback_of(&message.content))),
            _ => return,
        };
        outbox.output(turn, stream, true, text.as_bytes());
    }

    /// Takes the content of an `execute_reply`. Shows the page of a help request.
    pub fn take_reply(
        &mut self,
        turn: TurnNo,
        content: &Value,
        outbox: &mut Outbox,
    ) -> ReplyStatus {
        for payload in content["payload"].as_array().into_iter().flatten() {
            if payload["source"] == "page"
                && let Some(text) = plain_text(&payload["data"])
            {
                let page = with_line_end(without_ansi(&text));
                outbox.output(turn, Stream::Stdout, false, page.as_bytes());
            }
        }
        match content["status"].as_str() {
            Some("ok") => ReplyStatus::Ok,
            Some("aborted" | "abort") => ReplyStatus::Aborted,
            _ => {
                self.reply_traceback = traceback_of(content);
                let (name, message) = error_of(content);
                ReplyStatus::Error { name, message }
            }
        }
    }

    /// Shows the traceback of the reply. Call this only if the kernel has published no error.
    pub fn show_reply_traceback(&mut self, turn: TurnNo, outbox: &mut Outbox) {
        let traceback = with_line_end(std::mem::take(&mut self.reply_traceback));
        outbox.output(turn, Stream::Traceback, false, traceback.as_bytes());
    }

    fn show_display(
        &mut self,
        turn: TurnNo,
        message: &KernelMessage,
        update: bool,
        outbox: &mut Outbox,
    ) {
        let bundle = &message.content["data"];
        let id = message.content["transient"]["display_id"].as_str();
        match (richest(bundle), plain_text(bundle), id) {
            (Some((mime, body)), _, Some(id)) => {
                send_display(turn, mime, Some(id), update, &body, outbox);
            }
            (Some((mime, body)), _, None) => {
                let (id, replaces) = self.next_name();
                send_display(turn, mime, Some(&id), replaces, &body, outbox);
            }
            (None, Some(text), Some(id)) => {
                send_display(turn, PLAIN, Some(id), update, text.as_bytes(), outbox);
            }
            (None, Some(text), None) => {
                outbox.output(turn, Stream::Stdout, false, with_line_end(text).as_bytes());
            }
            (None, None, _) => {}
        }
    }

    /// A name for a display without one, and whether the display replaces an earlier one.
    fn next_name(&mut self) -> (String, bool) {
        if let Some(name) = self.of_turn.get(self.next) {
            self.next += 1;
            return (name.clone(), true);
        }
        self.named += 1;
        let name = format!("display-{}", self.named);
        if self.of_turn.len() < REPLACEABLE_MAX {
            self.of_turn.push(name.clone());
            self.next = self.of_turn.len();
        }
        (name, false)
    }
}

/// Shows the value of an expression: as text, and in its rich form if it has one.
fn show_value(turn: TurnNo, bundle: &Value, outbox: &mut Outbox) {
    let text = plain_text(bundle).map(|text| without_ansi(&text));
    if let Some(text) = &text {
        outbox.output(turn, Stream::Result, false, with_line_end(text.clone()).as_bytes());
    }
    if let Some((mime, body)) = richest(bundle)
        // HTML without any tag only repeats the text.
        && (text.is_none() || mime != HTML || body.contains(&b'<'))
    {
        send_display(turn, mime, None, false, &body, outbox);
    }
}

/// Whether a display is a value that was printed: it has a text, and no picture.
fn is_text_value(message: &KernelMessage) -> bool {
    let bundle = &message.content["data"];
    let is_picture = richest(bundle).is_some_and(|(mime, _)| mime.starts_with("image/"));
    plain_text(bundle).is_some()
        && !is_picture
        && message.content["transient"]["display_id"].is_null()
}

fn send_display(
    turn: TurnNo,
    mime: &str,
    id: Option<&str>,
    update: bool,
    body: &[u8],
    outbox: &mut Outbox,
) {
    let (mime, id) = (outgoing::name(mime), id.map(outgoing::name));
    let header =
        |more| FromWorker::Display { turn, mime: mime.clone(), id: id.clone(), update, more };
    if let Err(refused) = outbox.with_body(body, header) {
        let told = format!("a display of type {mime} is not shown: {refused}\n");
        outbox.output(turn, Stream::Stderr, false, told.as_bytes());
    }
}

fn stream_of(message: &KernelMessage) -> Stream {
    if message.text("name") == "stderr" { Stream::Stderr } else { Stream::Stdout }
}

/// The name and the message of an error.
fn error_of(content: &Value) -> (String, String) {
    let text = |field: &str| content[field].as_str().map(without_ansi).unwrap_or_default();
    let name = text("ename");
    (if name.is_empty() { "Error".to_owned() } else { name }, text("evalue"))
}

/// The traceback without colours, or the message if there is no traceback.
fn traceback_of(content: &Value) -> String {
    let lines: Vec<&str> =
        content["traceback"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if lines.is_empty() {
        let (name, message) = error_of(content);
        return format!("{name}: {message}");
    }
    without_ansi(&lines.join("\n"))
}

fn with_line_end(mut text: String) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}
