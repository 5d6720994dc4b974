//! Tests the editors on realistic files: a removal undoes an installation, and nothing else changes.

mod properties;

use serde_json::Value;

use super::client::{AgentClient, ConfigScope};
use super::config_paths::ConfigPaths;
use super::document::{self, EmptySection};
use super::plan::{self, ConfigAction};
use super::store;

const COMMAND: &str = "/opt/windlass/bin/windlass";

fn set(client: AgentClient, text: &str) -> String {
    document::set(client.facts(), text, &client.entry(COMMAND)).unwrap()
}

fn remove(client: AgentClient, text: &str) -> String {
    document::remove(client.facts(), text, EmptySection::Remove).unwrap()
}

/// A home that contains only this file of the client.
fn home_with(client: AgentClient, text: &str) -> (tempfile::TempDir, ConfigPaths) {
    let home = tempfile::tempdir().unwrap();
    let paths = ConfigPaths {
        config: home.path().join(".config"),
        claude_config_dir: None,
        codex_home: None,
        gemini_home: None,
        working: home.path().join("project"),
        path: "".into(),
        home: home.path().to_owned(),
    };
    let file = paths.files(client, ConfigScope::User).swap_remove(0);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
    (home, paths)
}

/// Installs, installs again with another command, uninstalls, and expects the original file.
#[track_caller]
fn check_there_and_back(client: AgentClient, text: &str) {
    let (_home, paths) = home_with(client, text);
    for command in [COMMAND, "/other/windlass"] {
        let plan = plan::install(&paths, client, ConfigScope::User, command).unwrap();
        plan::carry_out(&plan).unwrap();
        let text = store::read(&plan.file).unwrap().unwrap();
        let entry = document::read(client.facts(), &text).unwrap();
        assert_eq!(entry, Some(Value::Object(client.entry(command))), "{text}");
    }
    let plans = plan::uninstall(&paths, client, ConfigScope::User).unwrap();
    assert_eq!(plans.iter().map(|plan| plan.action).collect::<Vec<_>>(), [ConfigAction::Restored]);
    plan::carry_out(&plans[0]).unwrap();
    assert_eq!(store::read(&plans[0].file).unwrap().unwrap(), text);
    assert!(!store::backup_path(&plans[0].file).exists());
}

const JSON_FILES: &[&str] = &[
    "{\n  \"a\": 1\n}\n",
    "{\n  \"a\": 1\n}",
    "{\r\n\t\"a\": [1, 2],\r\n\t\"b\": {}\r\n}\r\n",
    "{\n    \"SECTION\": {\n        \"x\": { \"command\": \"y\" }\n    },\n    \"z\": null\n}\n",
    "{\"a\":1,\"SECTION\":{\"x\":{\"command\":\"y\",\"args\":[]}},\"b\":2}",
    "{\"a\": 1, \"b\": {\"windlass\": {}}}\n",
    "\u{feff}{\n  \"a\": \"\\u00e9 \\\"quoted\\\"\"\n}\n",
    "{\n  \"SECTION\": {},\n  \"z\": 1\n}\n",
];

/// After an installation these cannot be restored from the text alone, only from the backup.
const JSON_FILES_NEARLY_EMPTY: &[&str] =
    &["", "\n", "  \n\n", "{}", "{ }\n", "{\n}\n", "{\n\n}", "{\"SECTION\": { }}"];

const JSON_FILES_WITH_COMMENTS: &[&str] = &[
    "// mine\n{\n  \"a\": 1 // one\n  // tail\n}\n// end\n",
    "/* mine */ {\r\n  \"SECTION\": {\r\n    // first\r\n    \"x\": {} /* last */\r\n  }\r\n}",
    "{\n  \"SECTION\": {\n    // none yet\n  }\n}\n",
];

const JSON_FILES_WITH_COMMAS: &[&str] = &[
    "{\n  \"a\": 1, // one\n  \"SECTION\": {\n    \"x\": {\"command\": \"y\",},\n  },\n}\n",
    "{\"a\": [1,], \"SECTION\": {\"x\": {},},}",
    "{\n\t\"a\": 1,\n\t// the last word\n}\n",
];

const TOML_FILES: &[&str] = &[
    "",
    "\n",
    "# only a comment",
    "model = \"m\"\n",
    "model = \"m\"",
    "model = \"m\"\r\n\r\n[profiles.a]\r\nmodel = 'n' # c\r\n",
    "[mcp_servers.x]\nargs = [\n  \"a\", # b\n]\n\n[mcp_servers.x.env]\nA = \"1\"\n\n\n",
    "[mcp_servers]\n\n[tui]\nnotifications = true\n# tail",
    "[mcp_servers]\nx = { command = \"y\" }\n",
    "\u{feff}mcp_servers.x.command = \"y\"\n",
];

#[test]
fn uninstall_restores_every_file_byte_for_byte() {
    for client in AgentClient::all().filter(|client| *client != AgentClient::Codex) {
        let mut files = [JSON_FILES, JSON_FILES_NEARLY_EMPTY].concat();
        if client != AgentClient::ClaudeCode {
            files.extend(JSON_FILES_WITH_COMMENTS);
        }
        if !matches!(client, AgentClient::ClaudeCode | AgentClient::Gemini) {
            files.extend(JSON_FILES_WITH_COMMAS);
        }
        for file in files {
            check_there_and_back(client, &file.replace("SECTION", client.facts().section));
        }
    }
    for file in TOML_FILES {
        check_there_and_back(AgentClient::Codex, file);
    }
}

#[test]
fn removal_restores_the_text_without_a_backup_too() {
    let files = [JSON_FILES, JSON_FILES_WITH_COMMENTS, JSON_FILES_WITH_COMMAS].concat();
    for file in files.into_iter().filter(|file| !file.contains("{},")) {
        let text = file.replace("SECTION", "servers");
        assert_eq!(remove(AgentClient::VsCode, &set(AgentClient::VsCode, &text)), text);
    }
    for text in TOML_FILES {
        assert_eq!(remove(AgentClient::Codex, &set(AgentClient::Codex, text)), *text);
    }
}

#[test]
fn a_file_that_install_created_is_removed_by_uninstall() {
    for client in AgentClient::all() {
        let (_home, paths) = home_with(client, "");
        let file = paths.files(client, ConfigScope::User).swap_remove(0);
        std::fs::remove_file(&file).unwrap();
        let plan = plan::install(&paths, client, ConfigScope::User, COMMAND).unwrap();
        assert_eq!(plan.action, ConfigAction::Created);
        plan::carry_out(&plan).unwrap();
        let plans = plan::uninstall(&paths, client, ConfigScope::User).unwrap();
        assert_eq!(plans[0].action, ConfigAction::Deleted);
        plan::carry_out(&plans[0]).unwrap();
        assert!(!file.exists());
    }
}

#[test]
fn changes_by_other_programs_stay() {
    let (_home, paths) = home_with(AgentClient::Cursor, "{\n  \"a\": 1\n}\n");
    let plan = plan::install(&paths, AgentClient::Cursor, ConfigScope::User, COMMAND).unwrap();
    plan::carry_out(&plan).unwrap();
    let text = store::read(&plan.file).unwrap().unwrap();
    std::fs::write(&plan.file, text.replace("\"a\": 1", "\"a\": 2")).unwrap();
    let plans = plan::uninstall(&paths, AgentClient::Cursor, ConfigScope::User).unwrap();
    assert_eq!(plans[0].action, ConfigAction::Removed);
    assert_eq!(plans[0].after.as_deref(), Some("{\n  \"a\": 2\n}\n"));
    // A plan is refused if another program has written the file since.
    std::fs::write(&plan.file, text).unwrap();
    let error = plan::carry_out(&plans[0]).unwrap_err();
    assert_eq!(error.code(), "config_changed");
}

/// Sets the Windlass entry over an existing one and compares the text.
#[track_caller]
fn check_update(client: AgentClient, before: &str, after: &str) {
    let existing = document::read(client.facts(), before).unwrap().unwrap();
    let entry = client.entry_over(COMMAND, &existing);
    assert_eq!(document::set(client.facts(), before, &entry).unwrap(), after);
    assert_eq!(document::set(client.facts(), after, &entry).unwrap(), after);
}

#[test]
fn an_existing_entry_is_updated_and_keeps_what_the_user_added() {
    check_update(
        AgentClient::Zed,
        "{\n  \"context_servers\": {\n    \"windlass\": {\n      \"command\": \"/old\", // mine\n\t\
         \"args\": [\"mcp\", \"-v\"],\n      \"env\": {\"A\": \"b\"}\n    },\n    \"x\": 1\n  }\n}",
        "{\n  \"context_servers\": {\n    \"windlass\": {\n      \"command\": \
         \"/opt/windlass/bin/windlass\", // mine\n\t\
         \"args\": [\"mcp\", \"-v\"],\n      \"env\": {\"A\": \"b\"}\n    },\n    \"x\": 1\n  }\n}",
    );
    check_update(
        AgentClient::OpenCode,
        "{\"mcp\": {\"windlass\": {\"type\": \"local\", \"enabled\": false, \"command\": \
         [\"/old\", \"mcp\", \"-v\"]}}}",
        "{\"mcp\": {\"windlass\": {\"type\": \"local\", \"enabled\": false, \"command\": \
         [\"/opt/windlass/bin/windlass\", \"mcp\", \"-v\"]}}}",
    );
    check_update(
        AgentClient::Codex,
        "[mcp_servers.windlass] # mine\r\nurl = \"x\" # old\r\nenv_vars = []\r\n\
         default_tools_approval_mode = \"prompt\"\r\n\r\n\
         [mcp_servers.windlass.http_headers]\r\nA = \"1\"\r\n[z]\r\n",
        "[mcp_servers.windlass] # mine\r\ncommand = \"/opt/windlass/bin/windlass\"\r\nargs = \
         [\"mcp\"]\r\nenv_vars = []\r\ndefault_tools_approval_mode = \"prompt\"\r\n\r\n[z]\r\n",
    );
    check_update(
        AgentClient::Codex,
        "[mcp_servers.windlass.env]\nA = \"1\"\n",
        "[mcp_servers.windlass.env]\nA = \"1\"\n\n[mcp_servers.windlass]\ncommand = \
         \"/opt/windlass/bin/windlass\"\nargs = [\"mcp\"]\n",
    );
    check_update(
        AgentClient::Codex,
        "[mcp_servers]\nwindlass = { command = \"/old\", args = [\"mcp\"], enabled = false } # c\n",
        "[mcp_servers]\nwindlass = { command = \"/opt/windlass/bin/windlass\", args = [\"mcp\"], \
         enabled = false } # c\n",
    );
    check_update(
        AgentClient::Codex,
        "[mcp_servers]\nwindlass.command = \"/old\"\nwindlass.args = [\"mcp\"]",
        "[mcp_servers]\nwindlass.command = \"/opt/windlass/bin/windlass\"\nwindlass.args = \
         [\"mcp\"]",
    );
    check_update(
        AgentClient::Codex,
        "mcp_servers = { windlass = { command = \"/old\" }, x = { command = \"y\" } }\n",
        "mcp_servers = { windlass = { command = \"/opt/windlass/bin/windlass\", args = [\"mcp\"] \
         }, x = { command = \"y\" } }\n",
    );
}

#[test]
fn an_entry_in_any_toml_form_is_removed_completely() {
    let files = [
        (
            "a = 1\n# about x\n[mcp_servers.windlass]\n# inside\ncommand = \"c\"\n# after\n[z]\n",
            "a = 1\n# about x\n# after\n[z]\n",
        ),
        (
            "[mcp_servers.windlass.env]\nA = 1\n\n[z]\n\n[mcp_servers.windlass]\ncommand = \"c\"",
            "[z]",
        ),
        (
            "[mcp_servers]\nwindlass.command = \"c\"\nx.command = \"y\"\n",
            "[mcp_servers]\nx.command = \"y\"\n",
        ),
        ("[mcp_servers]\nwindlass = { command = \"c\" }\n", "[mcp_servers]\n"),
        ("mcp_servers = { windlass = { command = \"c\" } }\n", "mcp_servers = {}\n"),
    ];
    for (before, after) in files {
        let removed = remove(AgentClient::Codex, before);
        assert_eq!(removed.trim_start(), after, "{before}");
    }
}

#[test]
fn a_command_with_special_characters_is_kept_exactly() {
    let command = "/opt/a \"b\" \\c 'd' é\t/windlass";
    for client in AgentClient::all() {
        let entry = client.entry(command);
        let text = document::set(client.facts(), "", &entry).unwrap();
        let read = document::read(client.facts(), &text).unwrap();
        assert_eq!(read, Some(Value::Object(entry)), "{text}");
    }
}

#[track_caller]
fn check_refused(client: AgentClient, text: &str, message: &str) {
    let error = document::set(client.facts(), text, &client.entry(COMMAND)).unwrap_err();
    assert!(error.to_string().starts_with(message), "{text}: {error}");
}

#[test]
fn a_file_with_a_syntax_error_is_refused_with_line_and_column() {
    check_refused(AgentClient::Zed, "{\n  \"a\": 1\n  \"b\": 2\n}", "line 2, column 9: ");
    check_refused(AgentClient::ClaudeCode, "{\n  // mine\n}", "line 2, column 3: ");
    check_refused(AgentClient::Gemini, "{\n  \"a\": 1,\n}", "line 2, column 9: ");
    check_refused(AgentClient::Codex, "a = 1\nb = = 2\n", "line 2, column 5: ");
    check_refused(AgentClient::Cursor, "[]", "the file is not a table");
    check_refused(AgentClient::Cursor, "{\"mcpServers\": []}", "mcpServers is not a table");
    let text = "{\"mcpServers\": {\"windlass\": 1}}";
    check_refused(AgentClient::Cursor, text, "mcpServers.windlass is not a table");
    check_refused(AgentClient::Codex, "mcp_servers = 1", "mcp_servers is not a table");
    check_refused(AgentClient::Codex, "[[mcp_servers]]\na = 1\n", "mcp_servers is not a table");
    // JSON parsers disagree on which of two equal keys counts.
    let text = "{\"mcpServers\": {\"x\": {}}, \"mcpServers\": {\"y\": {}}}";
    check_refused(AgentClient::Cursor, text, "the entry windlass cannot be changed");
}

#[test]
fn of_two_files_the_one_with_the_entry_is_changed_and_both_are_cleaned() {
    let (_home, paths) = home_with(AgentClient::OpenCode, "{}\n");
    let files = paths.files(AgentClient::OpenCode, ConfigScope::User);
    let install =
        || plan::install(&paths, AgentClient::OpenCode, ConfigScope::User, COMMAND).unwrap();
    assert_eq!(install().file, files[0]);
    plan::carry_out(&install()).unwrap();
    std::fs::write(&files[1], "{\n  // mine\n}\n").unwrap();
    assert_eq!((install().file, install().action), (files[0].clone(), ConfigAction::Unchanged));
    std::fs::write(&files[1], set(AgentClient::OpenCode, "")).unwrap();
    assert_eq!(install().file, files[1]);
    let plans = plan::uninstall(&paths, AgentClient::OpenCode, ConfigScope::User).unwrap();
    assert_eq!(plans.len(), 2);
}
