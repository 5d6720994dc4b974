//! The built-in tools, with which code discovers other tools: `windlass.describe`, `windlass.list`,
//! `windlass.search`, and `search` unless a host offers a tool of that name. Pure.

mod search;
mod signature;
mod similar;
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

/// Maximum number of tools in one list.
const LIST_MAX: usize = 1000;

/// Default and maximum number of search results.
const HITS_DEFAULT: usize = 10;
const HITS_MAX: usize = 100;

/// Maximum number of characters in a tool's summary; a longer first line is cut.
const SUMMARY_CHARS_MAX: usize = 200;

/// Maximum number of similar names in the error for an unknown tool.
const SIMILAR_MAX: usize = 3;

/// The short name of `windlass.search`, unless a host offers a tool of that name.
const SEARCH: &str = "search";

/// The result of a built-in tool; `None` if the name is not one of them.
pub fn answer(
    hub: &Hub,
    caller: &Caller,
    name: &str,
    arguments: &[u8],
) -> Option<Result<Vec<u8>, ToolError>> {
    let Some((OWN_GROUP, builtin)) = name.split_once('.') else {
        let is_search = name == SEARCH && hub.offer(caller, SEARCH).is_none();
        return is_search.then(|| search(hub, caller, arguments));
    };
    Some(match builtin {
        "describe" => describe(hub, caller, arguments),
        "list" => Ok(list(hub, caller)),
        "search" => search(hub, caller, arguments),
        _ => Err(not_found(hub, caller, name)),
    })
}

/// The tools that the caller may call, for people: the results of a search, or all by name.
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

/// Whether a name that no host offers may be a built-in tool.
pub fn is_builtin(name: &str) -> bool {
    name == SEARCH || name.split_once('.').is_some_and(|(group, _)| group == OWN_GROUP)
}

/// The error for a call to an unknown tool; it suggests similar names.
pub fn not_found(hub: &Hub, caller: &Caller, name: &str) -> ToolError {
    let offers = visible_tools(hub, caller);
    let similar = similar::names(name, offers.iter().map(|offer| offer.name.as_str()), SIMILAR_MAX);
    let message = match similar.as_slice() {
        [] if offers.len() <= 1 => {
            format!("there is no tool {name:?}: no tools are offered to this session")
        }
        [] => format!("there is no tool {name:?}"),
        similar => format!("there is no tool {name:?}; similar names: {}", similar.join(", ")),
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
    Group { name: &'a str, tools: Vec<ToolSummary<'a>> },
}

fn describe(hub: &Hub, caller: &Caller, arguments: &[u8]) -> Result<Vec<u8>, ToolError> {
    let DescribeArguments { name } = parse(arguments)?;
    let built_in = || (name == SEARCH).then(|| BUILTIN_SEARCH.clone());
    if let Some(offer) = hub.offer(caller, &name).or_else(built_in) {
        let input_schema = offer.input_schema.as_ref().unwrap_or(&ANY_OBJECT);
        let (name, description) = (&*offer.name, &*offer.description);
        return Ok(to_json(&Description::Tool { name, description, input_schema }));
    }
    let offers = hub.offers(caller);
    let of_group = |offer: &&Arc<ToolOffer>| group(&offer.name) == Some(&*name);
    let tools: Vec<ToolSummary<'_>> =
        offers.iter().filter(of_group).take(LIST_MAX).map(|offer| tool_summary(offer)).collect();
    if tools.is_empty() {
        return Err(not_found(hub, caller, &name));
    }
    Ok(to_json(&Description::Group { name: &name, tools }))
}

#[derive(Serialize)]
struct ToolList<'a> {
    tools: Vec<ToolSummary<'a>>,
    more: bool,
}

#[derive(Serialize)]
struct ToolSummary<'a> {
    name: &'a str,
    summary: String,
}

fn list(hub: &Hub, caller: &Caller) -> Vec<u8> {
    let offers = visible_tools(hub, caller);
    let tools = offers.iter().take(LIST_MAX).map(|offer| tool_summary(offer)).collect();
    to_json(&ToolList { tools, more: offers.len() > LIST_MAX })
}

#[derive(Deserialize)]
struct SearchArguments {
    #[serde(alias = "query")]
    words: String,
    #[serde(default)]
    limit: Option<usize>,
}

#[derive(Serialize)]
struct SearchHit<'a> {
    name: &'a str,
    summary: String,
    signature: String,
}

fn search(hub: &Hub, caller: &Caller, arguments: &[u8]) -> Result<Vec<u8>, ToolError> {
    let SearchArguments { words, limit } = parse(arguments)?;
    let limit = limit.unwrap_or(HITS_DEFAULT).clamp(1, HITS_MAX);
    let offers = hub.offers(caller);
    let found: Vec<SearchHit<'_>> = search::best(&words, &offers, limit)
        .into_iter()
        .map(|offer| SearchHit {
            name: &offer.name,
            summary: summary(&offer.description),
            signature: signature::of(offer, caller.words),
        })
        .collect();
    Ok(to_json(&found))
}

/// The tools that the caller may call, including the built-in `search`.
fn visible_tools(hub: &Hub, caller: &Caller) -> Vec<Arc<ToolOffer>> {
    let mut offers = hub.offers(caller);
    if let Err(index) = offers.binary_search_by(|offer| offer.name.as_str().cmp(SEARCH)) {
        offers.insert(index, BUILTIN_SEARCH.clone());
    }
    offers
}

static ANY_OBJECT: LazyLock<Value> = LazyLock::new(|| json!({"type": "object"}));

/// The declaration of `search`, used unless a host offers a tool of that name.
static BUILTIN_SEARCH: LazyLock<Arc<ToolOffer>> = LazyLock::new(|| {
    Arc::new(ToolOffer {
        name: SEARCH.to_owned(),
        description: "Find tools by words in their names and descriptions, best first.\n\n\
            Gives a list of {\"name\", \"summary\", \"signature\"}."
            .to_owned(),
        input_schema: Some(json!({
            "type": "object",
            "properties": {
                "words": {"type": "string", "description": "what the tool should do"},
                "limit": {"type": "integer", "default": HITS_DEFAULT},
            },
            "required": ["words"],
        })),
        deadline_ms: None,
    })
});

fn tool_summary(offer: &ToolOffer) -> ToolSummary<'_> {
    ToolSummary { name: &offer.name, summary: summary(&offer.description) }
}

/// The first non-empty line.
fn summary(description: &str) -> String {
    let tool_summary =
        description.lines().map(str::trim).find(|tool_summary| !tool_summary.is_empty());
    tool_summary.unwrap_or_default().chars().take(SUMMARY_CHARS_MAX).collect()
}

/// The part of a name before the dot.
fn group(name: &str) -> Option<&str> {
    name.split_once('.').map(|(group, _)| group)
}

fn parse<T: DeserializeOwned>(arguments: &[u8]) -> Result<T, ToolError> {
    serde_json::from_slice(arguments).map_err(|error| ToolError {
        message: format!("the arguments do not match the tool's schema: {error}"),
        code: Some(ErrorCode::BadRequest),
        kind: None,
    })
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("text and JSON values always serialise")
}
