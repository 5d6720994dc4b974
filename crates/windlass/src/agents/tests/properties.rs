//! The same tests on generated files in many styles.

use proptest::collection::{hash_set, vec};
use proptest::prelude::*;

use super::{check_there_and_back, remove, set};
use crate::agents::client::{AgentClient, ENTRY};

/// Few cases: each one writes files and syncs them.
const CASES: u32 = 64;

/// A style of writing JSON.
#[derive(Debug, Clone)]
struct JsonStyle {
    indent: &'static str,
    newline: &'static str,
    comments: bool,
    trailing_comma: bool,
    final_newline: bool,
}

/// The names in a file: of settings, and of servers if the file has a list of them, first or last.
#[derive(Debug, Clone)]
struct FileNames {
    settings: Vec<String>,
    servers: Option<Vec<String>>,
    servers_first: bool,
}

fn styles() -> impl Strategy<Value = JsonStyle> {
    let indent = prop_oneof![Just("  "), Just("    "), Just("\t"), Just("")];
    let newline = prop_oneof![Just("\n"), Just("\r\n")];
    (indent, newline, any::<[bool; 3]>()).prop_map(|(indent, newline, habits)| {
        let [comments, trailing_comma, final_newline] = habits;
        JsonStyle { indent, newline, comments, trailing_comma, final_newline }
    })
}

fn names() -> impl Strategy<Value = FileNames> {
    let some = || {
        hash_set("[a-z]{1,6}", 0..4).prop_map(|names| {
            names.into_iter().filter(|name| name != ENTRY && name != "servers").collect()
        })
    };
    (some(), proptest::option::of(some()), any::<bool>()).prop_map(
        |(settings, servers, servers_first)| FileNames { settings, servers, servers_first },
    )
}

impl JsonStyle {
    fn file(&self, names: FileNames) -> String {
        let named = |names: Vec<String>, value: &str| -> Vec<(String, String)> {
            names.into_iter().map(|name| (name, value.to_owned())).collect()
        };
        let mut members = named(names.settings, "[1, {}]");
        if let Some(servers) = names.servers {
            let server = self.object(2, &[("command".to_owned(), "\"y\"".to_owned())]);
            let servers = self.object(1, &named(servers, &server));
            let at = if names.servers_first { 0 } else { members.len() };
            members.insert(at, ("servers".to_owned(), servers));
        }
        self.object(0, &members) + if self.final_newline { self.newline } else { "" }
    }

    fn object(&self, depth: usize, members: &[(String, String)]) -> String {
        let inner = self.indent.repeat(depth + 1);
        let mut text = format!("{{{}", self.newline);
        for (at, (name, value)) in members.iter().enumerate() {
            let last = at + 1 == members.len();
            let comma = if last && !self.trailing_comma { "" } else { "," };
            let note = if self.comments { " // a note" } else { "" };
            text += &format!("{inner}\"{name}\": {value}{comma}{note}{}", self.newline);
        }
        text + &self.indent.repeat(depth) + "}"
    }
}

/// Every line of the file is kept, except for the comma after the former last value.
fn check_lines_kept(before: &str, after: &str) {
    let line = |line: &str| line.replace(',', "");
    let has_content = |line: &&str| !line.trim_matches(['{', '}', ' ', '\t', ',']).is_empty();
    for old in before.lines().filter(has_content) {
        assert!(after.lines().any(|new| line(new) == line(old)), "{old} is lost:\n{after}");
    }
}

const BLOCKS: [&str; 6] = [
    "# a note",
    "",
    "[mcp_servers.NAME]\ncommand = \"y\"",
    "[NAME]\na.b = 1 # c",
    "[mcp_servers.NAME]\nargs = [\n 'a',\n]\n[mcp_servers.NAME.env]\nA = '''\n[x]\n'''",
    "[[NAME]]\na = {b = 1}",
];

fn toml_file(blocks: &[&str], newline: &str, ended: bool) -> String {
    let named = |(at, block): (usize, &&str)| block.replace("NAME", &format!("n{at}"));
    let text = blocks.iter().enumerate().map(named).collect::<Vec<_>>().join("\n");
    let text = if ended { text + "\n" } else { text };
    text.replace('\n', newline)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn json_in_any_style_is_restored_byte_for_byte(style in styles(), names in names()) {
        let text = style.file(names);
        let installed = set(AgentClient::VsCode, &text);
        check_lines_kept(&text, &installed);
        let line_feeds = installed.matches('\n').count();
        prop_assert_eq!(installed.matches(style.newline).count(), line_feeds);
        check_there_and_back(AgentClient::VsCode, &text);
    }

    #[test]
    fn toml_in_any_style_is_restored_byte_for_byte(
        blocks in vec(proptest::sample::select(&BLOCKS[..]), 0..6),
        newline in prop_oneof![Just("\n"), Just("\r\n")],
        ended in any::<bool>(),
    ) {
        let text = toml_file(&blocks, newline, ended);
        let installed = set(AgentClient::Codex, &text);
        prop_assert!(installed.starts_with(&text));
        prop_assert_eq!(remove(AgentClient::Codex, &installed), text.clone());
        check_there_and_back(AgentClient::Codex, &text);
    }
}
