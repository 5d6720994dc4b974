//! The OpenAPI document of `/v1`, generated from the handlers. A test checks that `docs/openapi.json` is the
//! same document.

use utoipa::OpenApi;

use super::{
    egress, environments, events, files, node, output, secrets, sessions, tools, tools_list, turns,
};

/// The OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(
    info(
        title = "Windlass",
        description = "Persistent sessions of code for agents: the HTTP door of one node.",
        version = "1.0",
        license(name = "MIT OR Apache-2.0")
    ),
    // The header of a frame in a write-back's body; no handler has it as a parameter type.
    components(schemas(windlass_protocol::api::FileChange)),
    paths(
        sessions::create,
        sessions::list,
        sessions::look,
        sessions::close,
        sessions::reset,
        sessions::fork,
        turns::submit,
        turns::look,
        turns::interrupt,
        turns::interrupt_running,
        turns::input,
        events::events,
        egress::log,
        secrets::list,
        secrets::set,
        secrets::remove,
        secrets::rules,
        secrets::set_rules,
        files::list,
        files::content,
        files::put,
        files::delete,
        files::write_back,
        files::watch::watch,
        output::range,
        output::search,
        output::display,
        tools::attach,
        tools_list::list,
        environments::list,
        environments::create,
        environments::look,
        environments::remove,
        node::workers,
        node::health,
        node::version,
        node::metrics,
        node::openapi,
        node::disk,
        node::prune,
        node::stop,
    )
)]
pub struct Document;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_in_the_repository_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let made = Document::openapi().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == made, "docs/openapi.json is stale: run this test with UPDATE_SCHEMA=1");
    }
}
