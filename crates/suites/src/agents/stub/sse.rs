//! Server-sent events as text. Each event has its type as name and its JSON in one line.

use std::fmt::Write;

use serde_json::Value;

pub fn text(events: &[Value]) -> String {
    let mut text = String::new();
    for event in events {
        let name = event["type"].as_str().unwrap_or("message");
        // JSON escapes line ends, so the data of an event is always one line.
        let _ = write!(text, "event: {name}\ndata: {event}\n\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_its_type_one_line_of_data_and_an_empty_line() {
        let events = [json!({ "type": "a.b", "text": "1\n2" }), json!({ "type": "c" })];
        assert_eq!(
            text(&events),
            "event: a.b\ndata: {\"type\":\"a.b\",\"text\":\"1\\n2\"}\n\n\
             event: c\ndata: {\"type\":\"c\"}\n\n"
        );
    }
}
