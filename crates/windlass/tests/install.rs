//! `install` and `uninstall` as users run them: the real binary, in a private home.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::CstRootNode;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Each client, its file below the home, its file in a project, and the path of its entry.
const CLIENTS: &[(&str, &str, &str, &str)] = &[
    ("claude-code", ".claude.json", ".mcp.json", "/mcpServers/windlass"),
    ("codex", ".codex/config.toml", ".codex/config.toml", ""),
    ("cursor", ".cursor/mcp.json", ".cursor/mcp.json", "/mcpServers/windlass"),
    ("vscode", ".config/Code/User/mcp.json", ".vscode/mcp.json", "/servers/windlass"),
    ("gemini", ".gemini/settings.json", ".gemini/settings.json", "/mcpServers/windlass"),
    ("opencode", ".config/opencode/opencode.json", "opencode.json", "/mcp/windlass"),
    ("zed", ".config/zed/settings.json", ".zed/settings.json", "/context_servers/windlass"),
];

struct Home {
    directory: tempfile::TempDir,
}

fn home() -> Home {
    let home = Home { directory: tempfile::tempdir().unwrap() };
    fs::create_dir(home.path("project")).unwrap();
    home
}

impl Home {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(args).env_clear().env("HOME", self.directory.path());
        command.current_dir(self.path("project"));
        command
    }

    fn windlass(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}

#[track_caller]
fn said(output: &Output, code: i32) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stdout}{stderr}");
    stdout
}

#[track_caller]
fn parsed(output: &Output, code: i32) -> Value {
    serde_json::from_str(&said(output, code)).unwrap()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// A realistic file in the client's syntax.
fn settings(client: &str, way: &str) -> String {
    match client {
        "codex" => "# mine\nmodel = \"m\"\n\n[mcp_servers.other]\ncommand = \"o\"\n".to_owned(),
        "claude-code" | "gemini" => "{\n    \"theme\": \"dark\"\n}".to_owned(),
        _ => {
            let section = way.split('/').nth(1).unwrap();
            format!("// mine\n{{\n\t\"{section}\": {{\n\t\t\"other\": {{}}, // o\n\t}},\n}}\n")
        }
    }
}

fn entry(file: &Path, way: &str) -> Value {
    let tree = CstRootNode::parse(&text(file), &ParseOptions::default()).unwrap();
    tree.to_serde_value().unwrap().pointer(way).unwrap().clone()
}

#[test]
fn every_client_gets_the_entry_once_and_uninstall_restores_the_file() {
    let home = home();
    for (client, file, _, way) in CLIENTS {
        let before = settings(client, way);
        let file = home.write(file, &before);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();

        let diff = said(&home.windlass(&["install", client, "--dry-run"]), 0);
        assert!(diff.starts_with(&format!("--- {0}\n+++ {0}\n@@", file.display())), "{diff}");
        assert_eq!(text(&file), before);

        let done = said(&home.windlass(&["install", client]), 0);
        let backup = PathBuf::from(format!("{}.windlass-backup", file.display()));
        for part in ["added the server windlass", &format!("{PROGRAM} mcp"), "check", "backup"] {
            assert!(done.contains(part), "no {part} in {done}");
        }
        let installed = text(&file);
        let expected = match *client {
            "codex" => Value::Null,
            "opencode" => json!({ "type": "local", "command": [PROGRAM, "mcp"] }),
            "gemini" | "zed" => json!({ "command": PROGRAM, "args": ["mcp"] }),
            _ => json!({ "type": "stdio", "command": PROGRAM, "args": ["mcp"] }),
        };
        if *client == "codex" {
            let block =
                format!("\n[mcp_servers.windlass]\ncommand = \"{PROGRAM}\"\nargs = [\"mcp\"]\n");
            let rest = installed.strip_prefix(&(before.clone() + &block)).unwrap();
            let lines: Vec<&str> = rest.lines().collect();
            assert!(lines[0].starts_with("env_vars = [\"XDG_RUNTIME_DIR\", "), "{rest}");
            assert_eq!(lines[1..], ["default_tools_approval_mode = \"approve\""]);
        } else {
            assert_eq!(entry(&file, way), expected, "{installed}");
        }
        assert_eq!(text(&backup), before);
        for path in [&file, &backup] {
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o640, "{}", path.display());
        }

        let inode = file.metadata().unwrap().ino();
        let again = said(&home.windlass(&["install", client]), 0);
        assert!(again.contains("already installed"), "{again}");
        assert_eq!(file.metadata().unwrap().ino(), inode, "{client} was written again");

        let other = said(&home.windlass(&["install", client, "--command", "/x/windlass"]), 0);
        assert!(other.contains("updated") && other.contains("from an earlier change"), "{other}");
        assert_eq!(text(&backup), before);

        said(&home.windlass(&["uninstall", client, "--dry-run"]), 0);
        assert!(text(&file).contains("/x/windlass"));
        said(&home.windlass(&["uninstall", client]), 0);
        assert_eq!(text(&file), before);
        assert!(!backup.exists());
        let gone = said(&home.windlass(&["uninstall", client]), 0);
        assert!(gone.contains("not installed"), "{gone}");
    }
}

#[test]
fn a_project_has_separate_files() {
    let home = home();
    for (client, user, file, _) in CLIENTS {
        let args = ["install", client, "--project", "--command", "windlass"];
        said(&home.windlass(&args), 0);
        let file = home.path("project").join(file);
        assert!(text(&file).contains("\"windlass\""), "{}", text(&file));
        assert!(!home.path(user).exists(), "{client}");
        said(&home.windlass(&["uninstall", client, "--project"]), 0);
        assert!(!file.exists(), "{client}");
    }
}

#[test]
fn a_new_file_is_for_its_owner_only() {
    let home = home();
    for (client, file, ..) in CLIENTS {
        said(&home.windlass(&["install", client]), 0);
        assert_eq!(home.path(file).metadata().unwrap().mode() & 0o7777, 0o600, "{client}");
    }
}

#[test]
fn a_file_that_install_created_is_updated_and_leaves_nothing_behind() {
    let home = home();
    for (client, file, ..) in CLIENTS {
        said(&home.windlass(&["install", client, "--command", "/old/windlass"]), 0);
        let output = home.windlass(&["install", client, "--command", "/new/windlass"]);
        assert!(said(&output, 0).contains("updated"));
        assert!(
            String::from_utf8_lossy(&output.stderr)
                .contains("/new/windlass is not an executable file")
        );
        said(&home.windlass(&["uninstall", client]), 0);
        let directory = home.path(file).parent().unwrap().to_owned();
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> =
            names.filter(|name| name.to_string_lossy().contains("windlass")).collect();
        assert!(left.is_empty() && !home.path(file).exists(), "{client}: {left:?}");
    }
}

#[test]
fn a_disabled_entry_stays_disabled_and_is_reported() {
    let home = home();
    let file = home.write(".codex/config.toml", "[mcp_servers.windlass]\nenabled = false\n");
    let done = said(&home.windlass(&["install", "codex"]), 0);
    assert!(done.contains("stays disabled"), "{done}");
    assert!(text(&file).contains("enabled = false"));
}

#[test]
fn an_invalid_file_is_not_changed_and_the_others_are() {
    let home = home();
    let broken = home.write(".cursor/mcp.json", "{\n  \"mcpServers\": {\n    oops\n  }\n}\n");
    let before = text(&broken);
    let output = home.windlass(&["install", "cursor", "codex"]);
    assert!(said(&output, 1).contains("Codex: created"));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in ["mcp.json: line 3, column 5", "config_invalid", "was not changed"] {
        assert!(complaint.contains(part), "no {part} in {complaint}");
    }
    assert_eq!(text(&broken), before);
    assert!(!home.path(".cursor/mcp.json.windlass-backup").exists());
    let output = parsed(&home.windlass(&["uninstall", "cursor", "--json"]), 1);
    assert_eq!(output["clients"][0]["error"]["code"], "config_invalid");
}

#[test]
fn a_symlink_stays_and_its_target_is_changed() {
    let home = home();
    let target = home.write("dotfiles/zed.json", "{\n  // mine\n}\n");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir_all(home.path(".config/zed")).unwrap();
    let link = home.path(".config/zed/settings.json");
    symlink("../../dotfiles/zed.json", &link).unwrap();
    said(&home.windlass(&["install", "zed"]), 0);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert!(text(&target).contains("context_servers"));
    assert_eq!(target.metadata().unwrap().mode() & 0o7777, 0o600);
    assert!(home.path(".config/zed/settings.json.windlass-backup").exists());
    said(&home.windlass(&["uninstall", "zed"]), 0);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(text(&target), "{\n  // mine\n}\n");

    fs::remove_file(&target).unwrap();
    let output = home.windlass(&["install", "zed"]);
    said(&output, 1);
    assert!(String::from_utf8_lossy(&output.stderr).contains("a file that does not exist"));
}

#[test]
fn a_read_only_file_is_refused() {
    let home = home();
    let file = home.write(".gemini/settings.json", "{}\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    let output = parsed(&home.windlass(&["install", "gemini", "--json"]), 1);
    assert_eq!(output["clients"][0]["error"]["code"], "config_unwritable");
    assert_eq!(text(&file), "{}\n");
    assert_eq!(fs::read_dir(home.path(".gemini")).unwrap().count(), 1);
}

#[test]
fn the_variables_that_move_a_clients_files_are_followed() {
    let home = home();
    let moved = [
        ("claude-code", "CLAUDE_CONFIG_DIR", "moved/.claude.json"),
        ("codex", "CODEX_HOME", "moved/config.toml"),
        ("gemini", "GEMINI_CLI_HOME", "moved/.gemini/settings.json"),
        ("vscode", "XDG_CONFIG_HOME", "moved/Code/User/mcp.json"),
        ("opencode", "XDG_CONFIG_HOME", "moved/opencode/opencode.json"),
        ("zed", "XDG_CONFIG_HOME", "moved/zed/settings.json"),
    ];
    for (client, variable, file) in moved {
        let mut command = home.command(&["install", client]);
        said(&command.env(variable, home.path("moved")).output().unwrap(), 0);
        assert!(home.path(file).exists(), "{client}");
    }
}

#[test]
fn without_a_client_install_lists_those_found_and_all_means_those() {
    let home = home();
    fs::create_dir_all(home.path(".codex")).unwrap();
    home.write(".claude.json", "{\"mcpServers\": {}}");
    let program = home.write("bin/opencode", "#!/bin/sh\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |args: &[&str]| home.command(args).env("PATH", home.path("bin")).output().unwrap();

    let list = said(&run(&["install"]), 0);
    for line in ["claude-code", "codex", "opencode", "not found: cursor, vscode, gemini, zed"] {
        assert!(list.lines().any(|found| found.starts_with(line)), "no {line} in {list}");
    }
    let list = parsed(&run(&["install", "--json"]), 0);
    let would: Vec<_> = list["clients"].as_array().unwrap().iter().collect();
    assert_eq!(would.len(), CLIENTS.len());
    assert_eq!((&would[0]["would"], &would[1]["would"]), (&json!("added"), &json!("created")));
    assert_eq!(would[2]["found"], Value::Null);
    assert!(!home.path(".codex/config.toml").exists());

    let done = parsed(&run(&["install", "--all", "--json"]), 0);
    let done = done["clients"].as_array().unwrap();
    let names: Vec<_> = done.iter().map(|client| client["client"].as_str().unwrap()).collect();
    assert_eq!(names, ["claude-code", "codex", "opencode"]);
    assert_eq!(done[0]["backup"]["state"], "made");
    assert_eq!(done[1]["entry"]["command"], PROGRAM);
    assert!(!home.path(".cursor").exists());

    let gone = parsed(&run(&["uninstall", "--all", "--json"]), 0);
    let actions: Vec<_> = gone["clients"].as_array().unwrap().iter().collect();
    let actions: Vec<_> = actions.iter().map(|client| &client["action"]).collect();
    assert_eq!(actions, ["restored", "deleted", "deleted"]);
    assert_eq!(text(&home.path(".claude.json")), "{\"mcpServers\": {}}");
    assert_eq!(said(&run(&["uninstall", "--all"]), 0), "Windlass is not installed in any client\n");
}

#[test]
fn without_any_client_all_lists_the_valid_names() {
    let home = home();
    let output = home.windlass(&["install", "--all"]);
    said(&output, 1);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("claude-code|codex|cursor|vscode"), "{complaint}");
    let output = home.windlass(&["install", "emacs"]);
    said(&output, 2);
    assert!(String::from_utf8_lossy(&output.stderr).contains("possible values: claude-code"));
}
