//! The node's own tools, by which code finds out what else there is: `windlass.describe`,
//! `windlass.list`, `windlass.search`, and `search` where nobody offers one. Pure.

mod near;
mod search;
mod signature;
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use windlass_protocol::ErrorCode;
use windlass_protocol::api::{SessionTool, SessionTools};
use windlass_protocol::host::{OWN_GROUP, ToolError, ToolOffer};

use super::hub::{Caller, Hub};

/// Tools in one list.
const LIST_MAX: usize = 1000;

/// Tools that a search finds where the code does not say, and at most.
const FOUND_DEFAULT: usize = 10;
const FOUND_MAX: usize = 100;

/// Characters of a tool's summary; a longer first line is cut.
const SUMMARY_CHARS_MAX: usize = 200;

/// Near matches that are named where there is no such tool.
const NEAR_MAX: usize = 3;

/// The plain name of `windlass.search`, unless a host offers a tool of that name.
const SEARCH: &str = "search";

/// The answer of one of the node's own tools; none, if the name is not one of them.
pub fn answer(
    hub: &Hub,
    caller: &Caller,
    name: &str,
    arguments: &[u8],
) -> Option<Result<Vec<u8>, ToolError>> {
    let Some((OWN_GROUP, own)) = name.split_once('.') else {
        let ours = name == SEARCH && hub.offer(caller, SEARCH).is_none();
        return ours.then(|| search(hub, caller, arguments));
    };
    Some(match own {
        "describe" => describe(hub, caller, arguments),
        "list" => Ok(list(hub, caller)),
        "search" => search(hub, caller, arguments),
        _ => Err(not_found(hub, caller, name)),
    })
}

/// What the caller may call, for people: what the words lead to, or all by name.
pub fn show(hub: &Hub, caller: &Caller, words: Option<&str>) -> SessionTools {
    let offers = hub.offers(caller);
    let found: Vec<&ToolOffer> = match words {
        Some(words) => search::best(words, &offers, LIST_MAX),
        None => offers.iter().take(LIST_MAX).map(|offer| &**offer).collect(),
    };
    let tool = |offer: &ToolOffer| SessionTool {
        name: offer.name.clone(),
        summary: summary(&offer.description),
        signature: signature::of(offer, caller.words),
    };
    let more = words.is_none() && offers.len() > LIST_MAX;
    SessionTools { tools: found.into_iter().map(tool).collect(), more }
}

/// Whether a name that no host offers may be one of the node's own.
pub fn is_own(name: &str) -> bool {
    name == SEARCH || name.split_once('.').is_some_and(|(group, _)| group == OWN_GROUP)
}

/// The error of a call to what nobody offers: names what was perhaps meant.
pub fn not_found(hub: &Hub, caller: &Caller, name: &str) -> ToolError {
    let offers = seen(hub, caller);
    let near = near::to(name, offers.iter().map(|offer| offer.name.as_str()), NEAR_MAX);
    let message = match near.as_slice() {
        [] if offers.len() <= 1 => {
            format!("there is no tool {name:?}: nobody offers tools to this session")
        }
        [] => format!("there is no tool {name:?}"),
        near => format!("there is no tool {name:?}; near it: {}", near.join(", ")),
    };
    ToolError { message, code: Some(ErrorCode::ToolNotFound), kind: None }
}

#[derive(Deserialize)]
struct DescribeArguments {
    name: String,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Description<'a> {
    Tool { name: &'a str, description: &'a str, input_schema: &'a Value },
    Group { name: &'a str, tools: Vec<Line<'a>> },
}

fn describe(hub: &Hub, caller: &Caller, arguments: &[u8]) -> Result<Vec<u8>, ToolError> {
    let DescribeArguments { name } = parse(arguments)?;
    let built_in = || (name == SEARCH).then(|| BUILT_IN.clone());
    if let Some(offer) = hub.offer(caller, &name).or_else(built_in) {
        let input_schema = offer.input_schema.as_ref().unwrap_or(&ANY_OBJECT);
        let (name, description) = (&*offer.name, &*offer.description);
        return Ok(to_json(&Description::Tool { name, description, input_schema }));
    }
    let offers = hub.offers(caller);
    let of_group = |offer: &&Arc<ToolOffer>| group(&offer.name) == Some(&*name);
    let tools: Vec<Line<'_>> =
        offers.iter().filter(of_group).take(LIST_MAX).map(|offer| line(offer)).collect();
    if tools.is_empty() {
        return Err(not_found(hub, caller, &name));
    }
    Ok(to_json(&Description::Group { name: &name, tools }))
}

#[derive(Serialize)]
struct List<'a> {
    tools: Vec<Line<'a>>,
    more: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    summary: String,
}

fn list(hub: &Hub, caller: &Caller) -> Vec<u8> {
    let offers = seen(hub, caller);
    let tools = offers.iter().take(LIST_MAX).map(|offer| line(offer)).collect();
    to_json(&List { tools, more: offers.len() > LIST_MAX })
}

#[derive(Deserialize)]
struct SearchArguments {
    #[serde(alias = "query")]
    words: String,
    #[serde(default)]
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Found<'a> {
    name: &'a str,
    summary: String,
    signature: String,
}

fn search(hub: &Hub, caller: &Caller, arguments: &[u8]) -> Result<Vec<u8>, ToolError> {
    let SearchArguments { words, limit } = parse(arguments)?;
    let limit = limit.unwrap_or(FOUND_DEFAULT).clamp(1, FOUND_MAX);
    let offers = hub.offers(caller);
    let found: Vec<Found<'_>> = search::best(&words, &offers, limit)
        .into_iter()
        .map(|offer| Found {
            name: &offer.name,
            summary: summary(&offer.description),
            signature: signature::of(offer, caller.words),
        })
        .collect();
    Ok(to_json(&found))
}

/// What the caller sees, the plain `search` included.
fn seen(hub: &Hub, caller: &Caller) -> Vec<Arc<ToolOffer>> {
    let mut offers = hub.offers(caller);
    if let Err(place) = offers.binary_search_by(|offer| offer.name.as_str().cmp(SEARCH)) {
        offers.insert(place, BUILT_IN.clone());
    }
    offers
}

static ANY_OBJECT: LazyLock<Value> = LazyLock::new(|| json!({"type": "object"}));

/// What is offered as `search` where nobody else does.
static BUILT_IN: LazyLock<Arc<ToolOffer>> = LazyLock::new(|| {
    Arc::new(ToolOffer {
        name: SEARCH.to_owned(),
        description: "Find tools by words in their names and descriptions, best first.\n\n\
            Gives a list of {\"name\", \"summary\", \"signature\"}."
            .to_owned(),
        input_schema: Some(json!({
            "type": "object",
            "properties": {
                "words": {"type": "string", "description": "what the tool should do"},
                "limit": {"type": "integer", "default": FOUND_DEFAULT},
            },
            "required": ["words"],
        })),
        deadline_ms: None,
    })
});

fn line(offer: &ToolOffer) -> Line<'_> {
    Line { name: &offer.name, summary: summary(&offer.description) }
}

/// The first line that says something.
fn summary(description: &str) -> String {
    let line = description.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or_default().chars().take(SUMMARY_CHARS_MAX).collect()
}

/// What stands before the dot.
fn group(name: &str) -> Option<&str> {
    name.split_once('.').map(|(group, _)| group)
}

fn parse<T: DeserializeOwned>(arguments: &[u8]) -> Result<T, ToolError> {
    serde_json::from_slice(arguments).map_err(|error| ToolError {
        message: format!("the arguments are not what is asked for: {error}"),
        code: Some(ErrorCode::BadRequest),
        kind: None,
    })
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("text and JSON values always serialise")
}
