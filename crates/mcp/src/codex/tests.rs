//! What Codex 0.166 was seen to send, what older versions sent, and invalid input.

use serde_json::{Value, json};
use windlass_protocol::policy::{Policy, WorkspaceAccess};

use super::*;

fn meta(state: Value) -> Map<String, Value> {
    Map::from_iter([(CAPABILITY.to_owned(), state)])
}

fn state(profile: Value) -> Value {
    json!({
        "permissionProfile": profile,
        "codexLinuxSandboxExe": "/opt/codex/bin/codex",
        "sandboxCwd": "file:///vol/project",
        "useLegacyLandlock": false,
        "useMxc": false,
    })
}

fn managed(entries: Value, network: &str) -> Value {
    let file_system = json!({"type": "restricted", "entries": entries});
    state(json!({"type": "managed", "file_system": file_system, "network": network}))
}

fn root(access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": "root"}}, "access": access})
}

fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

fn at(path: &str, access: &str) -> Value {
    json!({"path": {"type": "path", "path": path}, "access": access})
}

/// An entry by which Codex protects a name in a writable root.
fn kept(path: &str) -> Value {
    let path = json!({"type": "path", "path": path});
    json!({"path": path, "access": "read", "missing_path_behavior": "skip"})
}

/// What `codex exec --sandbox workspace-write` sends, with these writable directories.
fn workspace_write(roots: &[&str], network: &str) -> Value {
    let mut entries = vec![root("read")];
    entries.extend(roots.iter().map(|root| at(root, "write")));
    entries.extend([special("slash_tmp", "write"), special("tmpdir", "write")]);
    for name in [".git", ".agents", ".codex", ".aws"] {
        entries.extend(roots.iter().map(|root| kept(&format!("{root}/{name}"))));
    }
    managed(json!(entries), network)
}

fn policy_of(state: Value) -> Value {
    let sandbox = sandbox_of(&meta(state)).unwrap().unwrap();
    assert_eq!(sandbox.workspace.as_deref(), Some(std::path::Path::new("/vol/project")));
    json!(sandbox.policy)
}

fn refused(state: Value) -> String {
    match sandbox_of(&meta(state.clone())) {
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("nothing ran; "), "{said}");
            said
        }
        Ok(taken) => panic!("{state} was taken for {taken:?}"),
    }
}

const DEFAULT: [&str; 6] = ["write", "hidden", "network", "privileges", "syscalls", "devices"];

fn required(more: &[&str]) -> Value {
    json!(DEFAULT.iter().chain(more).collect::<Vec<_>>())
}

#[test]
fn a_call_without_a_sandbox_has_none() {
    let meta = Map::from_iter([("threadId".to_owned(), json!("01a1"))]);
    assert_eq!(sandbox_of(&meta), Ok(None));
}

#[test]
fn each_mode_of_codex_is_the_preset_that_grants_no_more() {
    let workspace = workspace_write(&["/vol/project"], "restricted");
    let online = workspace_write(&["/vol/project"], "enabled");
    let unrestricted = json!({"type": "unrestricted"});
    let cases = [
        (
            managed(json!([root("read")]), "restricted"),
            json!({"preset": "read-only", "network": "none"}),
        ),
        (
            managed(json!([root("read")]), "enabled"),
            json!({"preset": "read-only", "network": "open"}),
        ),
        (
            workspace,
            json!({"preset": "workspace", "network": "none", "required": required(&["protected"])}),
        ),
        (
            online,
            json!({"preset": "workspace", "network": "open", "required": required(&["protected"])}),
        ),
        (state(json!({"type": "disabled"})), json!({"preset": "open", "network": "open"})),
        (
            state(json!({"type": "external", "network": "restricted"})),
            json!({"preset": "workspace", "network": "none"}),
        ),
        (
            state(json!({"type": "external", "network": "enabled"})),
            json!({"preset": "workspace", "network": "open"}),
        ),
        (
            state(json!({
                "type": "managed", "file_system": unrestricted, "network": "restricted",
            })),
            json!({"preset": "open", "network": "none"}),
        ),
        (
            managed(json!([root("write")]), "restricted"),
            json!({"preset": "open", "network": "none"}),
        ),
    ];
    for (state, expected) in cases {
        assert_eq!(policy_of(state.clone()), expected, "{state}");
    }
}

#[test]
fn every_writable_directory_is_writable_once() {
    let roots = ["/vol/project", "/vol/extra", "/vol/extra dir é", "/vol/extra"];
    let policy = policy_of(workspace_write(&roots, "restricted"));
    assert_eq!(policy["writable"], json!(["/vol/extra", "/vol/extra dir é"]));
    assert_eq!(policy["required"], required(&["protected"]));
    assert_eq!(policy.get("readable"), None);
}

#[test]
fn a_profile_of_its_own_is_held_part_by_part() {
    let entries = json!([
        at("/srv/private", "deny"),
        at("/vol/extra", "write"),
        at("/opt/tools", "read"),
        special("minimal", "read"),
        at("/vol/project", "write"),
        at("/vol/project/docs", "read"),
        at("/vol/project/secret", "none"),
        at("/vol/ada/.codex/tmp/arg0-linux/codex-arg00v4pVm", "read"),
    ]);
    assert_eq!(
        policy_of(managed(entries, "restricted")),
        json!({
            "preset": "workspace",
            "isolation": "full",
            "readable": [
                "/bin", "/etc", "/lib", "/lib64", "/nix/store", "/opt/tools",
                "/run/current-system/sw", "/sbin", "/usr", "/vol/project/docs",
            ],
            "writable": ["/vol/extra"],
            "hidden": ["/srv/private", "/vol/project/secret"],
            "network": "none",
            "required": required(&["protected", "read"]),
        })
    );
}

#[test]
fn the_deepest_entry_decides_and_the_strictest_of_two_at_one_path() {
    let cases = [
        // Denied and granted at one path: denied.
        (json!([root("read"), at("/vol/keys", "deny"), at("/vol/keys", "write")]), "/vol/keys"),
        (json!([root("read"), at("/vol/keys/", "write"), at("/vol//keys", "deny")]), "/vol/keys"),
        (json!([root("read"), special("slash_tmp", "deny")]), "/tmp"),
    ];
    for (entries, hidden) in cases {
        let policy = policy_of(managed(entries, "restricted"));
        assert_eq!(policy["hidden"], json!([hidden]));
        assert_eq!(policy.get("writable"), None);
    }
    // A directory that may only be read, in one that may be written.
    let entries = json!([root("read"), at("/vol", "write"), at("/vol/project", "read")]);
    let policy = policy_of(managed(entries, "restricted"));
    assert_eq!(policy["preset"], "read-only");
    assert_eq!(policy["isolation"], "full");
    // The machine's temporary directories are never granted.
    let entries = json!([root("read"), special("slash_tmp", "write"), special("tmpdir", "write")]);
    let expected = json!({"preset": "read-only", "network": "none"});
    assert_eq!(policy_of(managed(entries, "restricted")), expected);
    // Nothing but the workspace.
    let project = json!({"kind": "project_roots"});
    let entries = json!([{"path": {"type": "special", "value": project}, "access": "read"}]);
    let policy = policy_of(managed(entries, "restricted"));
    assert_eq!(policy["readable"], json!([]));
    assert_eq!(policy["required"], required(&["read"]));
    // A name that every session protects needs nothing more. Any other name needs full isolation.
    for (name, isolation) in [(".git", Value::Null), ("docs", json!("full"))] {
        let kept = at(&format!("/vol/project/{name}"), "read");
        let entries = json!([root("read"), at("/vol/project", "write"), kept]);
        let policy = policy_of(managed(entries, "restricted"));
        assert_eq!(policy.get("isolation").cloned().unwrap_or_default(), isolation);
        assert_eq!(policy["required"], required(&["protected"]));
    }
}

#[test]
fn what_older_versions_sent_is_held_too() {
    let legacy = |policy: Value| {
        json!({
            "sandboxPolicy": policy,
            "codexLinuxSandboxExe": null,
            "sandboxCwd": "/vol/project",
            "useLegacyLandlock": false,
        })
    };
    let protected = required(&["protected"]);
    let cases = [
        (json!({"type": "danger-full-access"}), json!({"preset": "open", "network": "open"})),
        (json!({"type": "read-only"}), json!({"preset": "read-only", "network": "none"})),
        (
            json!({"type": "read-only", "access": {"type": "full-access"}, "network_access": true}),
            json!({"preset": "read-only", "network": "open"}),
        ),
        (
            json!({"type": "external-sandbox", "network_access": "enabled"}),
            json!({"preset": "workspace", "network": "open"}),
        ),
        (
            json!({
                "type": "workspace-write", "writable_roots": ["/vol/extra"],
                "network_access": false, "exclude_tmpdir_env_var": false, "exclude_slash_tmp": true,
            }),
            json!({
                "preset": "workspace", "writable": ["/vol/extra"], "network": "none",
                "required": protected,
            }),
        ),
    ];
    for (policy, expected) in cases {
        assert_eq!(policy_of(legacy(policy.clone())), expected, "{policy}");
    }
    // If both are present, the profile counts.
    let mut both = managed(json!([root("read")]), "restricted");
    both["sandboxPolicy"] = json!({"type": "danger-full-access"});
    assert_eq!(policy_of(both)["preset"], "read-only");
}

#[test]
fn a_directory_comes_as_a_uri_or_as_a_path() {
    let directory = |text: &str| {
        let mut state = state(json!({"type": "disabled"}));
        state["sandboxCwd"] = json!(text);
        sandbox_of(&meta(state)).unwrap().unwrap().workspace.unwrap()
    };
    let odd = "file:///vol/odd%20dir%20%C3%A9%23%25%3Fx";
    assert_eq!(directory(odd), PathBuf::from("/vol/odd dir é#%?x"));
    assert_eq!(directory("file://localhost/vol/./project/"), PathBuf::from("/vol/project"));
    assert_eq!(directory("/vol/project"), PathBuf::from("/vol/project"));
}

#[test]
fn a_policy_resolves_to_what_codex_allows() {
    let resolve =
        |state| -> Policy { sandbox_of(&meta(state)).unwrap().unwrap().policy.resolve().unwrap() };
    let policy = resolve(managed(json!([root("read")]), "restricted"));
    assert_eq!(policy.workspace, WorkspaceAccess::Read);
    assert!(policy.writable.is_empty());
    assert_eq!(policy.network, Network::None);
    let policy = resolve(workspace_write(&["/vol/project"], "restricted"));
    assert_eq!(policy.workspace, WorkspaceAccess::Write);
    assert!(policy.writable.is_empty());
    // A session protects what Codex protects in a writable root.
    for name in [".git", ".agents", ".codex", ".aws"] {
        assert!(policy.protected.iter().any(|kept| kept == name), "{name}");
    }
}

#[test]
fn what_the_server_was_told_to_forbid_stays_forbidden() {
    let read_only = managed(json!([root("read")]), "restricted");
    let workspace = workspace_write(&["/vol/project", "/vol/extra"], "enabled");
    let docs = json!([
        root("read"),
        at("/vol/project", "write"),
        at("/vol/project/docs", "read"),
        at("/srv/keys", "deny"),
    ]);
    let disabled = state(json!({"type": "disabled"}));
    let cases = [
        // Codex confines nothing, so the options apply unchanged.
        (
            disabled.clone(),
            json!({"limits": {"processes": 8}, "isolation": "none"}),
            json!({"preset": "open", "isolation": "none", "limits": {"processes": 8}}),
        ),
        (disabled, json!({"preset": "read-only"}), json!({"preset": "read-only"})),
        // Options that allow more than Codex does.
        (
            read_only,
            json!({
                "preset": "open", "isolation": "none", "network": "open", "writable": ["/data"],
                "required": ["cpu"],
            }),
            json!({"preset": "read-only", "network": "none", "required": required(&["cpu"])}),
        ),
        // Options that allow less.
        (
            workspace.clone(),
            json!({"preset": "read-only", "hidden": ["/srv"], "limits": {"processes": 8}}),
            json!({
                "preset": "read-only", "hidden": ["/srv"], "network": "none",
                "limits": {"processes": 8}, "required": required(&["protected"]),
            }),
        ),
        (
            workspace,
            json!({"network": {"hosts": ["example.com"]}, "environment": ["LANG"]}),
            json!({
                "preset": "workspace", "writable": ["/vol/extra"],
                "network": {"hosts": ["example.com"]}, "environment": ["LANG"],
                "required": required(&["protected"]),
            }),
        ),
        // Paths that Codex denies or protects are not shown.
        (
            managed(docs, "restricted"),
            json!({"readable": ["/usr"], "shown": ["/srv/keys", "~/.cache", ".git"]}),
            json!({
                "preset": "workspace", "isolation": "full",
                "readable": ["/vol/project/docs", "/usr"], "hidden": ["/srv/keys"],
                "shown": ["~/.cache"], "network": "none", "required": required(&["protected"]),
            }),
        ),
    ];
    for (state, options, expected) in cases {
        let sandbox = sandbox_of(&meta(state.clone())).unwrap().unwrap();
        assert_eq!(sandbox.clone().within(None), sandbox);
        let told: PolicyRequest = serde_json::from_value(options.clone()).unwrap();
        assert_eq!(json!(sandbox.within(Some(&told)).policy), expected, "{state} {options}");
    }
}

#[test]
fn hosts_that_codex_keeps_to_mean_no_network() {
    let mut meta = meta(workspace_write(&["/vol/project"], "enabled"));
    meta.insert(HOSTS.to_owned(), json!({"allowedDomains": ["example.com"]}));
    let sandbox = sandbox_of(&meta).unwrap().unwrap();
    assert_eq!(sandbox.policy.network, Some(Network::None));
}

#[test]
fn the_other_name_counts_as_much_and_may_not_differ() {
    let strict = managed(json!([root("read")]), "restricted");
    let mut meta = Map::from_iter([(SAME_AGAIN.to_owned(), strict.clone())]);
    let sandbox = sandbox_of(&meta).unwrap().unwrap();
    assert_eq!(sandbox.policy.preset, Some(Preset::ReadOnly));
    meta.insert(CAPABILITY.to_owned(), strict);
    assert!(sandbox_of(&meta).unwrap().is_some());
    meta.insert(CAPABILITY.to_owned(), state(json!({"type": "disabled"})));
    assert_eq!(sandbox_of(&meta), Err(BadSandbox::Contradiction));
}

#[test]
fn what_is_not_understood_is_refused_and_says_what() {
    let entry = |path: Value, access: Value| {
        managed(json!([root("read"), {"path": path, "access": access}]), "restricted")
    };
    let special = |value: Value| entry(json!({"type": "special", "value": value}), json!("read"));
    let mut without_directory = managed(json!([root("read")]), "restricted");
    without_directory["sandboxCwd"] = Value::Null;
    let mut more = root("read");
    more["until"] = json!("noon");
    let cases = [
        (Value::Null, "no object"),
        (json!("read-only"), "no object"),
        (json!([{"type": "disabled"}, null, "/vol"]), "no object"),
        (json!({}), "permissionProfile"),
        (json!({"sandboxCwd": "file:///vol/project"}), "permissionProfile"),
        (json!({"permissionProfile": null, "sandboxCwd": "/vol/project"}), "permissionProfile"),
        (state(json!({"type": "lenient"})), "lenient"),
        (state(json!({"network": "enabled"})), "type"),
        (state(json!({"type": "disabled", "except": ["/vol"]})), "except"),
        (state(json!({"type": "managed", "network": "restricted"})), "file_system"),
        (state(json!({"type": "external"})), "network"),
        (state(json!({"type": "external", "network": "sometimes"})), "sometimes"),
        (managed(json!([root("read")]), "proxied"), "proxied"),
        (managed(json!("all"), "restricted"), "all"),
        (managed(json!([root("execute")]), "restricted"), "execute"),
        (managed(json!([more]), "restricted"), "until"),
        (special(json!({"kind": "moon"})), "moon"),
        (special(json!({"kind": "unknown", "path": ":moon"})), "unknown"),
        (special(json!({"kind": "root", "except": "/etc"})), "except"),
        (entry(json!({"type": "inode", "inode": 7}), json!("read")), "inode"),
        (entry(json!({"type": "path"}), json!("read")), "path"),
        (entry(json!({"type": "path", "path": 7}), json!("read")), "7"),
        (without_directory, "sandboxCwd"),
        (json!({"sandboxPolicy": {"type": "read-only"}}), "sandboxCwd"),
        (json!({"sandboxPolicy": {"type": "allow-list"}, "sandboxCwd": "/vol"}), "allow-list"),
        (
            json!({"sandboxCwd": "/vol", "sandboxPolicy":
                {"type": "read-only", "access": {"type": "restricted", "readable_roots": []}}}),
            "restricted",
        ),
        (
            json!({"sandboxCwd": "/vol", "sandboxPolicy":
                {"type": "workspace-write", "writable_roots": "/vol"}}),
            "invalid type",
        ),
    ];
    for (state, says) in cases {
        let said = refused(state.clone());
        assert!(said.contains(says), "{state}: {said}");
    }
}

#[test]
fn a_path_that_is_none_is_refused() {
    let long = format!("/{}", "x".repeat(4096));
    for (path, says) in [
        ("", "not absolute"),
        ("work/project", "not absolute"),
        ("~/project", "not absolute"),
        ("file:///vol", "not absolute"),
        ("/vol/../etc", "leads back up"),
        ("/vol/\0", "NUL"),
        (long.as_str(), "too long"),
    ] {
        for access in ["read", "write", "deny"] {
            let said = refused(managed(json!([root("read"), at(path, access)]), "restricted"));
            assert!(said.contains(says), "{path:?}: {said}");
            assert!(said.len() < 600, "{}", said.len());
        }
    }
    let endless = format!("file:///{}", "%41".repeat(4097));
    for (directory, says) in [
        ("project", "not absolute"),
        ("ftp:///vol", "not absolute"),
        ("file:work", "not absolute"),
        ("file://elsewhere/vol", "another machine"),
        ("file:///vol/%2e%2e/etc", "leads back up"),
        ("file:///vol/%00", "NUL"),
        ("file:///vol/%zz", "not encoded"),
        ("file:///vol/%4", "not encoded"),
        ("file:///vol/%ff", "not encoded"),
        ("file:///vol?x", "no URI"),
        ("file:///vol#x", "no URI"),
        (endless.as_str(), "too long"),
    ] {
        let mut state = managed(json!([root("read")]), "restricted");
        state["sandboxCwd"] = json!(directory);
        let said = refused(state);
        assert!(said.contains(says), "{directory:?}: {said}");
    }
    for subpath in ["../other", "/etc", "a/../../b"] {
        let value = json!({"kind": "project_roots", "subpath": subpath});
        let entry = json!({"path": {"type": "special", "value": value}, "access": "write"});
        refused(managed(json!([root("read"), entry]), "restricted"));
    }
}

#[test]
fn what_a_session_cannot_hold_is_refused() {
    let pattern = json!({"type": "glob_pattern", "pattern": "/vol/project/**/*.env"});
    let pattern = json!({"path": pattern, "access": "deny"});
    let cases = [
        (json!([root("read"), pattern]), "*.env"),
        (json!([root("read"), special("tmpdir", "deny")]), "TMPDIR"),
        (json!([special("minimal", "write"), root("read")]), "the system's own files"),
        (json!([]), "no access to its directory"),
        (json!([special("minimal", "read")]), "no access to its directory"),
        (json!([root("deny")]), "no access to its directory"),
        (json!([root("read"), at("/vol", "deny")]), "no access to its directory"),
        (json!([root("write"), at("/etc", "read")]), "/etc"),
        (json!([root("write"), at("/vol/project", "read")]), "/vol/project"),
    ];
    for (entries, says) in cases {
        let said = refused(managed(entries.clone(), "restricted"));
        assert!(said.contains(says), "{entries}: {said}");
    }
}

#[test]
fn long_lists_are_refused() {
    let many = |count: usize, access: &str| {
        let entries = (0..count).map(|number| at(&format!("/data/{number}"), access));
        managed(json!(std::iter::once(root("read")).chain(entries).collect::<Vec<_>>()), "enabled")
    };
    for (access, what) in [("write", "writable"), ("deny", "hidden")] {
        assert!(sandbox_of(&meta(many(LIST_MAX, access))).is_ok());
        assert!(refused(many(LIST_MAX + 1, access)).contains(what));
    }
    // Redundant entries are allowed, up to the limit.
    assert!(sandbox_of(&meta(many(ENTRIES_MAX - 1, "read"))).is_ok());
    assert!(refused(many(ENTRIES_MAX, "read")).contains("entries"));
}
