//! Contract line 108: a tenant sees and uses only what is its own. Two tenants have tokens for the TCP door of one real
//! node, and each tries what it can think of with the names of the other.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};
use windlass_client::protocol::{ErrorCode, TenantName, TokenName};
use windlass_client::{NamedTokens, NewToken, Token, TokenScope};
use windlass_testkit::mcp::output_of;
use windlass_testkit::nats::free_ports;
use windlass_testkit::{McpClient, PATIENCE, TestNode, skip};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// A session of the tenant `acme`, and an id that no session has.
const VICTIM: &str = "dev@acme";
const NOBODY: &str = "nil@acme";

/// A client of the TCP door.
struct DoorClient {
    address: String,
    token: String,
}

impl DoorClient {
    /// Sends a request on a new connection. The answer's body is `null` if it is not JSON.
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (body, host, token) = (body.to_string(), &self.address, &self.token);
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\
             connection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        (status.unwrap(), serde_json::from_str(body).unwrap_or_default())
    }

    /// Begins an answer that lasts as long as the connection. Returns its status.
    fn follow(&self, path: &str) -> (TcpStream, u16) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (host, token) = (&self.address, &self.token);
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        // The beginning of an answer is like `HTTP/1.1 200`.
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        (stream, String::from_utf8_lossy(&status[9..]).parse().unwrap())
    }

    fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, &json!({}));
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Creates a session with a shell.
    fn create(&self, id: &str) -> (u16, Value) {
        self.ask("POST", "/v1/sessions", &json!({"id": id, "worker": "shell"}))
    }

    /// The output of a command.
    fn run(&self, session: &str, command: &str) -> String {
        let turn = json!({"code": command, "wait_ms": 30_000});
        let (status, turn) = self.ask("POST", &format!("/v1/sessions/{session}/turns"), &turn);
        assert_eq!(status, 200, "{turn}");
        turn["output"]["text"].as_str().unwrap_or_default().to_owned()
    }

    /// The sessions that the client sees. Its overview has the same ones.
    fn listed(&self, query: &str) -> Vec<String> {
        let [sessions, rows] = ["sessions", "overview"].map(|list| {
            let list = self.get(&format!("/v1/{list}{query}"));
            let ids = list["sessions"].as_array().unwrap().iter();
            let mut ids: Vec<String> =
                ids.map(|session| session["id"].as_str().unwrap().to_owned()).collect();
            ids.sort();
            ids
        });
        assert_eq!(sessions, rows, "{query}");
        sessions
    }
}

/// A node with a session `dev` of each tenant, and one without a tenant.
struct Tenants {
    node: TestNode,
    /// Has no tenant.
    owner: DoorClient,
    acme: DoorClient,
    other: DoorClient,
}

impl Tenants {
    async fn start() -> Option<Self> {
        Self::start_with("").await
    }

    /// Starts the node with this configuration file. `None` if this machine cannot run the sessions of tenants.
    async fn start_with(config: &str) -> Option<Self> {
        Self::start_at("127.0.0.1:0", config).await
    }

    /// The same with the TCP door at an address.
    async fn start_at(listen: &str, config: &str) -> Option<Self> {
        let node = TestNode::builder(PROGRAM).arg("--listen").arg(listen).config(config);
        let node = node.start().await.unwrap();
        let status = node.client().await.unwrap().node_status().await.unwrap();
        let address = status.listen.unwrap();
        let client = |token: &Token| DoorClient {
            address: address.clone(),
            token: token.as_str().to_owned(),
        };
        let of_tenant = |tenant: &str| {
            let new = NewToken {
                name: TokenName::parse(tenant).unwrap(),
                // The most that a token of a tenant can allow.
                scope: TokenScope::Admin,
                tenant: Some(TenantName::parse(tenant).unwrap()),
                created_at_ms: 0,
                expires_at_ms: None,
            };
            client(&NamedTokens::create(&node.dirs().named_tokens(), new).unwrap())
        };
        let owner = client(&Token::read(&node.dirs().token()).unwrap());
        let (acme, other) = (of_tenant("acme"), of_tenant("other"));
        for (client, id) in [(&acme, VICTIM), (&other, "dev@other"), (&owner, "dev")] {
            let (status, made) = client.create("dev");
            if code(&made) == Some(ErrorCode::NotEnforceable) {
                skip(format!("sessions of tenants need the level full: {made}"));
                return None;
            }
            assert_eq!((status, made["session"]["id"].as_str()), (201, Some(id)), "{made}");
        }
        Some(Self { node, owner, acme, other })
    }
}

fn code(answer: &Value) -> Option<ErrorCode> {
    serde_json::from_value(answer["code"].clone()).ok()
}

/// Method and path of each documented route, with a value for each parameter but the session.
fn routes(client: &DoorClient) -> Vec<(String, String)> {
    let document = client.get("/v1/openapi.json");
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = ["{turn}", "{seq}", "{path}", "{name}", "{node}"]
            .iter()
            .fold(path.clone(), |path, parameter| path.replace(parameter, "1"));
        for method in methods.as_object().unwrap().keys() {
            routes.push((method.to_uppercase(), path.clone()));
        }
    }
    assert!(routes.len() > 40, "{routes:?}");
    routes
}

#[tokio::test]
async fn contract_108_each_tenant_has_all_names_and_lists_its_own_sessions() {
    let Some(Tenants { node: _node, owner, acme, other }) = Tenants::start().await else { return };
    assert_eq!(owner.listed(""), ["dev", VICTIM, "dev@other"]);
    assert_eq!(owner.listed("?tenant=acme"), [VICTIM]);
    for (client, own) in [(&acme, VICTIM), (&other, "dev@other")] {
        for query in ["", "?all=true", "?limit=5", "?limit=5&cursor=a"] {
            assert_eq!(client.listed(query), [own], "{query}");
        }
        let session = client.get("/v1/sessions/dev");
        assert_eq!(session["id"], own);
        assert_eq!(session["tenant"], own.split('@').nth(1).unwrap());
        assert_eq!(client.get("/v1/version")["sessions"], 1);
        assert_eq!(
            client.run("dev", &format!("echo of {own} > mine; cat mine")),
            format!("of {own}\n")
        );
    }
    assert!(acme.listed("?tenant=other").is_empty());
    // A name is taken within its tenant alone.
    assert_eq!(code(&acme.create("dev").1), Some(ErrorCode::SessionExists));
    assert_eq!(owner.run(VICTIM, "cat mine"), format!("of {VICTIM}\n"));
    let (status, closed) = acme.ask("DELETE", "/v1/sessions/dev", &json!({}));
    assert_eq!((status, &closed["id"]), (200, &json!(VICTIM)));
    assert_eq!(other.run("dev", "cat mine"), "of dev@other\n");
}

#[tokio::test]
async fn contract_108_no_route_tells_of_another_tenants_session() {
    let Some(Tenants { node: _node, owner, acme, other }) = Tenants::start().await else { return };
    for (method, path) in routes(&owner) {
        if !path.contains("{session}") {
            continue;
        }
        for (victim, nobody) in [(VICTIM, NOBODY), ("dev%40acme", "nil%40acme")] {
            let ask = |id: &str| {
                let (status, answer) =
                    other.ask(&method, &path.replace("{session}", id), &json!({"code": "id"}));
                (status, answer.to_string().replace("nil", "dev"))
            };
            let (there, nowhere) = (ask(victim), ask(nobody));
            assert_eq!(there, nowhere, "{method} {path} {victim}");
            assert!([403, 404].contains(&there.0), "{method} {path}: {there:?}");
        }
    }
    for query in ["session=dev@acme", "session=dev%40acme", "%73ession=dev@acme", "shared=all"] {
        let (status, answer) = other.ask("GET", &format!("/v1/tools/host?{query}"), &json!({}));
        assert!((400..500).contains(&status), "{query}: {answer}");
    }
    for request in [
        json!({"id": VICTIM}),
        json!({"id": "x", "tenant": "acme"}),
        json!({"parent": VICTIM}),
        json!({"owner": "me@acme"}),
    ] {
        let (status, answer) = other.ask("POST", "/v1/sessions", &request);
        assert_eq!((status, code(&answer)), (400, Some(ErrorCode::BadRequest)), "{request}");
    }
    // The session has not noticed.
    assert_eq!(acme.run("dev", "echo here"), "here\n");
    assert_eq!(acme.get("/v1/sessions/dev")["turns"], 1);
}

#[tokio::test]
async fn contract_108_a_tenant_reaches_nothing_of_the_node() {
    let Some(Tenants { node, owner, acme, other: _ }) = Tenants::start().await else { return };
    let open = [
        "/v1/console/session",
        "/v1/health",
        "/v1/openapi.json",
        "/v1/overview",
        "/v1/version",
        "/v1/tools/host",
        "/v1/usage",
    ];
    for (method, path) in routes(&owner) {
        if path.starts_with("/v1/sessions") || open.contains(&&*path) {
            continue;
        }
        let (status, answer) = acme.ask(&method, &path, &json!({}));
        assert_eq!((status, code(&answer)), (403, Some(ErrorCode::Forbidden)), "{method} {path}");
    }
    for (method, path) in [("POST", "/mcp"), ("GET", "/metrics"), ("GET", "/v1/later")] {
        assert_eq!(acme.ask(method, path, &json!({})).0, 403, "{method} {path}");
    }
    for request in [
        json!({"workspace": "/tmp"}),
        json!({"interpreter": "/bin/sh"}),
        json!({"worker": "shell", "env": {"PATH": "/srv/other/bin:/usr/bin:/bin"}}),
        json!({"worker": "acp:sh"}),
        json!({"policy": {"isolation": "none"}}),
        json!({"policy": {"preset": "open"}}),
        json!({"policy": {"readable": ["/"]}}),
        json!({"policy": {"writable": ["/tmp"]}}),
        json!({"policy": {"environment": ["HOME"]}}),
        json!({"policy": {"network": "open"}}),
        json!({"policy": {"required": []}}),
    ] {
        let (status, answer) = acme.ask("POST", "/v1/sessions", &request);
        assert_eq!((status, code(&answer)), (403, Some(ErrorCode::Forbidden)), "{request}");
    }
    // The session's code finds neither the files of the node nor the workspace of another tenant.
    let state = node.dirs().token();
    let state = state.parent().unwrap().display().to_string();
    let found = acme.run("dev", &format!("ls -R {state} {} 2>&1", node.base().display()));
    assert!(!found.contains("tokens") && !found.contains("dev@other"), "{found}");
}

#[tokio::test]
async fn contract_108_a_command_of_a_tenant_works_without_a_directory_of_its_machine() {
    let Some(Tenants { node, acme, .. }) = Tenants::start().await else { return };
    let project = node.base().join("project");
    std::fs::create_dir(&project).unwrap();
    let run = |options: &[&str]| {
        let mut args = vec!["run", "--worker", "shell"];
        args.extend(options);
        args.extend(["-c", "pwd; echo kept > file"]);
        let mut command = node.command(&args);
        command.env("WINDLASS_URL", format!("http://{}", acme.address));
        let ran = command.env("WINDLASS_TOKEN", &acme.token).current_dir(&project).output();
        let ran = ran.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ran.status.success(), text(&ran.stdout), text(&ran.stderr))
    };
    let (succeeded, stdout, stderr) = run(&[]);
    assert!(succeeded, "{stdout}{stderr}");
    assert!(stdout.contains("/workspaces/") && stdout.contains("@acme"), "{stdout}{stderr}");
    assert!(!project.join("file").exists());
    // The refusal names the option that works.
    let directory = project.to_str().unwrap();
    let (succeeded, stdout, stderr) = run(&["--workspace", directory]);
    assert!(!succeeded && stderr.contains("(`--workspace`) out"), "{stdout}{stderr}");
    assert_eq!(acme.get("/v1/version")["tenant"], "acme");
}

#[tokio::test]
async fn contract_108_a_bridge_of_a_tenant_works_although_it_started_before_its_node() {
    // A port for two starts of the node, which no outgoing connection of another test gets in between.
    let listen = format!("127.0.0.1:{}", free_ports(1).unwrap()[0]);
    let Some(Tenants { mut node, acme, .. }) = Tenants::start_at(&listen, "").await else { return };
    let bridge = |node: &TestNode| {
        let builder = McpClient::builder(node).env("WINDLASS_TOKEN", &acme.token);
        builder.env("WINDLASS_URL", format!("http://{}", acme.address)).start()
    };
    let run = |code: &str| json!({"code": code, "language": "shell"});
    node.kill9();
    let mut first = bridge(&node).await.unwrap();
    let refused = first.call("run", run("x=5")).await;
    assert_eq!(refused["isError"], json!(true), "{refused}");
    node.restart().await.unwrap();
    let ran = first.call("run", run("x=5; pwd")).await;
    assert_eq!(ran["structuredContent"]["outcome"], "ok", "{ran}");
    assert!(ran["structuredContent"]["session"].as_str().unwrap().ends_with("@acme"), "{ran}");
    assert!(first.close().await.unwrap().success());
    // The next bridge finds the session of the tenant.
    let mut second = bridge(&node).await.unwrap();
    let found = second.call("run", run("echo $x")).await;
    assert_eq!(output_of(&found), "5\n", "{found}");
}

#[tokio::test]
async fn contract_108_links_in_a_workspace_tell_a_tenant_nothing_of_the_machine() {
    let Some(Tenants { node, owner: _, acme, other: _ }) = Tenants::start().await else { return };
    let child = || {
        let python = json!({"parent": "dev", "worker": "python"});
        let (status, made) = acme.ask("POST", "/v1/sessions", &python);
        if let Some(id) = made["session"]["id"].as_str() {
            acme.ask("DELETE", &format!("/v1/sessions/{id}"), &json!({}));
        }
        (status, made["message"].clone())
    };
    let without_links = child();
    acme.run("dev", "mkdir -p .venv/bin");
    let state = node.dirs().token().display().to_string();
    for target in ["/none/such", "/etc/shadow", "/proc/self/fd/0", "/usr/bin/env", &*state] {
        acme.run("dev", &format!("ln -sfn {target} .venv/bin/python"));
        assert_eq!(child(), without_links, "{target}");
    }
}

#[tokio::test]
async fn contract_108_a_session_belongs_to_its_tenant_after_a_restart_of_the_node() {
    let Some(Tenants { mut node, owner, acme, other }) = Tenants::start().await else { return };
    assert_eq!(acme.run("dev", "x=42"), "");
    let forked = acme.ask("POST", "/v1/sessions/dev/fork", &json!({"id": "twin"})).1;
    // Not every machine can fork a shell.
    let twin = &forked["session"]["id"];
    assert!(twin.is_null() || twin == "twin@acme", "{forked}");
    node.kill9();
    node.restart().await.unwrap();
    let status = node.client().await.unwrap().node_status().await.unwrap();
    let at = |client: DoorClient| DoorClient { address: status.listen.clone().unwrap(), ..client };
    let (owner, acme, other) = (at(owner), at(acme), at(other));
    assert_eq!(acme.run("dev", "echo $x"), "42\n");
    assert!(acme.listed("").contains(&VICTIM.to_owned()));
    assert_eq!(other.listed(""), ["dev@other"]);
    assert_eq!(owner.get(&format!("/v1/sessions/{VICTIM}"))["tenant"], "acme");
}

#[tokio::test]
async fn contract_108_a_tenant_exhausts_only_its_own_quota() {
    let config = "[tenants.acme]\nsessions = 2\nmemory = \"512M\"\nhosts = [\"example.org\"]\n\
                  [tenants.default]\nsessions = 2\n";
    let Some(Tenants { node: _node, owner, acme, other }) = Tenants::start_with(config).await
    else {
        return;
    };
    // The client named no limit, so the session has what the quota allows.
    let limits = |client: &DoorClient, id: &str| {
        client.get(&format!("/v1/sessions/{id}"))["policy"]["limits"]["memory_bytes"].clone()
    };
    assert_eq!(limits(&acme, "dev"), 512 << 20);
    assert_eq!(limits(&other, "dev"), limits(&owner, "dev"));
    let (status, answer) = acme.create("more");
    assert_eq!((status, code(&answer)), (429, Some(ErrorCode::QuotaExceeded)), "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("memory_bytes"), "{answer}");
    assert_eq!(other.create("more").0, 201);
    let (_, answer) = other.create("third");
    assert!(answer["message"].as_str().unwrap().contains("2 for sessions"), "{answer}");
    // A client without a tenant does not get around the quota.
    let (_, answer) = owner.create("third@other");
    assert_eq!(code(&answer), Some(ErrorCode::QuotaExceeded), "{answer}");
    assert_eq!(owner.create("third").0, 201);
    // Usage is that of the tenant alone.
    assert_eq!(acme.run("dev", "printf 12345"), "12345");
    let usage = acme.get("/v1/usage")["tenants"].clone();
    assert_eq!(usage.as_array().map(Vec::len), Some(1), "{usage}");
    let own = &usage[0];
    assert_eq!((&own["tenant"], &own["sessions"]), (&json!("acme"), &json!(1)), "{usage}");
    assert_eq!((&own["turns"], &own["output_bytes"]), (&json!(1), &json!(5)), "{usage}");
    assert_eq!(own["held"]["memory_bytes"], 512 << 20, "{usage}");
    // A machine without cgroups measures nothing, and a figure is never 0 because nothing counts it.
    let measured = &own["measured"];
    let has = |figure: &str| measured[figure].as_f64() > Some(0.0);
    let is_measured = measured["sessions"] == 1 && (has("memory_bytes") || has("cpu_ms"));
    assert!(is_measured || measured["sessions"] == 0, "{usage}");
    assert!(measured["sessions"] != 0 || measured.get("cpu_ms").is_none(), "{usage}");
    assert_eq!(acme.get("/v1/usage?tenant=other")["tenants"], json!([]));
    assert_eq!(owner.get("/v1/usage")["tenants"].as_array().map(Vec::len), Some(3));
    // What a session held is free when it has ended, and what was refused has left nothing.
    assert_eq!(acme.ask("DELETE", "/v1/sessions/dev", &json!({})).0, 200);
    let small = json!({"id": "more", "worker": "shell",
        "policy": {"limits": {"memory_bytes": 256 << 20}, "network": {"hosts": ["example.org"]}}});
    let (status, made) = acme.ask("POST", "/v1/sessions", &small);
    assert_eq!(status, 201, "{made}");
    let beyond = json!({"policy": {"network": {"hosts": ["example.com"]}}});
    assert_eq!(acme.ask("POST", "/v1/sessions", &beyond).0, 403);
}

#[tokio::test]
async fn contract_108_a_session_of_a_tenant_ends_far_over_its_disk_limit() {
    let Some(Tenants { node: _node, owner: _, acme, other: _ }) = Tenants::start().await else {
        return;
    };
    let small = json!({"id": "grow", "worker": "shell",
        "policy": {"limits": {"disk_bytes": 1 << 20}}});
    let (status, made) = acme.ask("POST", "/v1/sessions", &small);
    assert_eq!(status, 201, "{made}");
    // Each turn is over the limit and ends. The sum of a few turns is too much.
    let ended = (0..20).find(|number| {
        let code = format!("head -c 40000000 /dev/zero > file{number}; sleep 20");
        let turn = json!({"code": code, "wait_ms": 30_000});
        acme.ask("POST", "/v1/sessions/grow/turns", &turn).0 == 410
    });
    assert!(ended.is_some());
    let events = acme.get("/v1/sessions/grow/events").to_string();
    assert!(events.contains(r#""reason":"disk""#) && events.contains("limit_disk"), "{events}");
    // The session that remains is as it was.
    assert_eq!(acme.run("dev", "echo here"), "here\n");
}

#[tokio::test]
async fn contract_108_a_tenant_cannot_use_up_the_bounds_of_the_node() {
    let Some(Tenants { node: _node, owner, acme, other }) = Tenants::start().await else { return };
    let path = "/v1/sessions/dev/files/watch";
    // The node has 64 watches. A tenant gets half of them.
    let mut held = Vec::new();
    for number in 0..32 {
        let (stream, status) = acme.follow(path);
        assert_eq!(status, 200, "{number}");
        held.push(stream);
    }
    assert_eq!(acme.follow(path).1, 429);
    for client in [&other, &owner] {
        assert_eq!(client.follow(path).1, 200);
    }
}

#[tokio::test]
async fn contract_108_uploads_of_a_tenant_stay_within_the_disk_limit_of_its_session() {
    let Some(Tenants { node: _node, owner: _, acme, other: _ }) = Tenants::start().await else {
        return;
    };
    let limits = json!({"disk_bytes": 64 << 10});
    let small = json!({"id": "small", "worker": "shell", "policy": {"limits": limits}});
    let (status, made) = acme.ask("POST", "/v1/sessions", &small);
    assert_eq!(status, 201, "{made}");
    let put = |name: &str| {
        let path = format!("/v1/sessions/small/files/{name}");
        acme.ask("PUT", &path, &json!("x".repeat(40 << 10)))
    };
    let (status, answer) = put("first");
    assert_eq!(status, 200, "{answer}");
    let (_, answer) = put("second");
    assert_eq!(code(&answer), Some(ErrorCode::MessageTooLarge), "{answer}");
}
