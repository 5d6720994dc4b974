//! A turn's displays: supported images as images, all others as links.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{ContentBlock, Resource};
use windlass_client::Client;
use windlass_protocol::agent;
use windlass_protocol::api::{DisplayRef, Turn};

use crate::fault::Fault;
use crate::resources;

/// Most images in one reply, and the largest size of one. Other displays are links.
const IMAGES_MAX: usize = 8;
const IMAGE_BYTES_MAX: u64 = 3 * 1024 * 1024;

/// Most bytes of all images in one reply, and of those for a session's agent. The node holds the replies to agents.
const IMAGES_BYTES_MAX: u64 = IMAGES_MAX as u64 * IMAGE_BYTES_MAX;
const AGENT_IMAGES_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// Image types that models accept.
const IMAGE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// The images of an ended turn, and links to its other displays.
pub(crate) async fn of(
    client: &Client,
    turn: &Turn,
) -> Result<(Vec<ContentBlock>, Vec<Resource>), Fault> {
    let (mut images, mut links) = (Vec::new(), Vec::new());
    let mut bytes_left = match client.is_limited() {
        true => AGENT_IMAGES_BYTES_MAX,
        false => IMAGES_BYTES_MAX,
    };
    // The events of an agent are no displays for a model. Its answer is the turn's output.
    let shown = last_of_each(&turn.displays).into_iter();
    for display in shown.filter(|display| display.mime != agent::MIME) {
        let bare = display.mime.split(';').next().unwrap_or_default().trim();
        let seen = IMAGE_TYPES.contains(&bare) && display.bytes <= IMAGE_BYTES_MAX;
        if seen && images.len() < IMAGES_MAX && display.bytes <= bytes_left {
            bytes_left -= display.bytes;
            let shown = client.display(&turn.session, display.seq).await?;
            images.push(ContentBlock::image(STANDARD.encode(&shown.bytes), bare));
        } else {
            let uri = resources::display(&turn.session, display.seq);
            links.push(Resource::new(uri, "display").with_mime_type(bare).with_size(display.bytes));
        }
    }
    Ok((images, links))
}

/// The last display of each id, in the order in which the ids first appeared.
fn last_of_each(displays: &[DisplayRef]) -> Vec<&DisplayRef> {
    let mut places = HashMap::new();
    let mut last: Vec<&DisplayRef> = Vec::new();
    for display in displays {
        let place = match &display.id {
            Some(id) => *places.entry(id.as_str()).or_insert(last.len()),
            None => last.len(),
        };
        match last.get_mut(place) {
            Some(before) => *before = display,
            None => last.push(display),
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use windlass_protocol::Seq;

    use super::*;

    #[test]
    fn a_display_that_is_replaced_shows_once_as_it_is_last() {
        let display = |seq, id: Option<&str>| DisplayRef {
            seq: Seq(seq),
            mime: "image/png".to_owned(),
            id: id.map(str::to_owned),
            bytes: 1,
        };
        let all = [
            display(1, Some("a")),
            display(2, None),
            display(3, Some("a")),
            display(4, Some("b")),
            display(5, None),
        ];
        let seqs: Vec<u64> = last_of_each(&all).iter().map(|display| display.seq.0).collect();
        assert_eq!(seqs, [3, 2, 4, 5]);
    }
}
