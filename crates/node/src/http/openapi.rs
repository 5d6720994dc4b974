//! The OpenAPI document of `/v1`, generated from the handlers. A test checks that `docs/openapi.json` is the
//! same document.

use utoipa::OpenApi;

use super::{
    console, doctor, egress, environments, events, files, fleet_view, node, output, overview,
    secrets, session_list, sessions, tools, tools_list, turns, usage,
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
        session_list::list,
        overview::overview,
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
        fleet_view::nodes,
        fleet_view::status,
        fleet_view::cordon,
        fleet_view::cordon_node,
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
        console::offer_login,
        console::log_in,
        console::log_out,
        environments::list,
        environments::create,
        environments::look,
        environments::remove,
        usage::usage,
        node::workers,
        node::health,
        node::version,
        node::metrics,
        node::openapi,
        node::disk,
        doctor::doctor,
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
    #[test]
    fn a_parameter_is_in_the_path_exactly_if_the_template_has_its_name() {
        let document = serde_json::to_value(Document::openapi()).unwrap();
        for (path, methods) in document["paths"].as_object().unwrap() {
            let mut in_template: Vec<&str> = path
                .split('{')
                .skip(1)
                .map(|rest| rest.split_once('}').expect("a brace is closed").0)
                .collect();
            in_template.sort_unstable();
            for (method, operation) in methods.as_object().unwrap() {
                let parameters = operation["parameters"].as_array().into_iter().flatten();
                let mut in_path: Vec<&str> = parameters
                    .filter(|parameter| parameter["in"] == "path")
                    .map(|parameter| parameter["name"].as_str().unwrap())
                    .collect();
                in_path.sort_unstable();
                assert_eq!(in_path, in_template, "{method} {path}");
            }
        }
    }
}
