//! The real agents, against a stub of their models' APIs (`model.py`). `WINDLASS_TEST_AGENTS` names a directory with a
//! directory for each agent, in which npm has installed it. An agent that is not there is skipped.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use windlass_client::protocol::agent::{
    ActionKind, ActionPhase, AgentEvent, AgentEventKind, AgentRequest, PermissionPolicy,
    ResumeToken,
};
use windlass_client::protocol::api::{CloseQuery, CreateSession, TurnInput};
use windlass_client::protocol::confinement::Isolation;
use windlass_client::protocol::policy::{HostRule, HostRules, Network, PolicyRequest};
use windlass_client::protocol::{Outcome, SessionId};
use windlass_testkit::{PATIENCE, TestNode, named_turn, processes, skip, turn_ended};

use crate::scene::{AgentScene, completed};

const MODEL: &str = include_str!("model.py");

/// The directory with the installed agents.
const AGENTS: &str = "WINDLASS_TEST_AGENTS";

/// The Node.js that runs the agents.
const NODE: &str = "WINDLASS_TEST_NODE";

/// One real agent, its stubbed model, and a node.
struct RealAgent {
    name: &'static str,
    scene: AgentScene,
    model: Child,
    port: u16,
    path: String,
    /// The program, if it is not the one on PATH.
    program: Option<String>,
}

impl RealAgent {
    /// `None`, and the test is skipped, if the agent is not installed.
    async fn start(name: &'static str) -> Option<Self> {
        let installed = std::env::var_os(AGENTS).map(PathBuf::from).map(|all| all.join(name));
        let program = installed.as_ref().map(|dir| dir.join("node_modules/.bin").join(name));
        let node = std::env::var_os(NODE).map(PathBuf::from).filter(|node| node.is_file());
        let (Some(program), Some(node)) = (program.filter(|program| program.exists()), node) else {
            skip(format_args!("{AGENTS} and {NODE} do not name {name} and a Node.js"));
            return None;
        };
        let scene = AgentScene::new().await;
        // A session cannot create this file, and opencode needs it.
        scene.write("opencode.json", "{}");
        let mut model = Command::new("python3")
            .args(["-c", MODEL])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(model.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().parse().unwrap();
        let dirs = [program.parent().unwrap(), node.parent().unwrap()];
        let dirs = dirs.map(|dir| dir.canonicalize().unwrap().display().to_string());
        let path = format!("{}:{}:/usr/local/bin:/usr/bin:/bin", dirs[0], dirs[1]);
        Some(Self { name, scene, model, port, path, program: None })
    }

    fn variables(&self) -> BTreeMap<String, String> {
        let url = format!("http://model.test:{}", self.port);
        let opencode = json!({
            "autoupdate": false,
            "share": "disabled",
            "model": "stub/m",
            "small_model": "stub/m",
            "enabled_providers": ["stub"],
            "provider": { "stub": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Stub",
                "options": { "baseURL": format!("{url}/v1"), "apiKey": "none" },
                "models": { "m": {
                    "name": "M", "tool_call": true, "limit": { "context": 100_000, "output": 4096 },
                }},
            }},
        });
        [
            ("PATH", self.path.clone()),
            ("ANTHROPIC_BASE_URL", url.clone()),
            ("ANTHROPIC_AUTH_TOKEN", "none".to_owned()),
            ("OPENCODE_CONFIG_CONTENT", opencode.to_string()),
            ("GOOGLE_GEMINI_BASE_URL", url),
            ("GEMINI_API_KEY", "none".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    fn arguments(&self) -> Vec<String> {
        if self.name != "codex" {
            return Vec::new();
        }
        let base = format!("model_providers.stub.base_url=\"http://model.test:{}/v1\"", self.port);
        let settings = [
            "model=\"gpt-5\"",
            "model_provider=\"stub\"",
            "model_providers.stub.name=\"stub\"",
            &base,
            "model_providers.stub.wire_api=\"responses\"",
        ];
        settings.iter().flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]).collect()
    }

    async fn session(
        &self,
        permissions: PermissionPolicy,
        resume: Option<ResumeToken>,
    ) -> SessionId {
        let host = HostRule::parse(&format!("model.test:{}=127.0.0.1", self.port)).unwrap();
        let policy = PolicyRequest {
            isolation: Some(Isolation::Full),
            network: Some(Network::Hosts(HostRules(vec![host]))),
            ..PolicyRequest::default()
        };
        let base = CreateSession {
            interpreter: self.program.clone(),
            policy: Some(policy),
            env: self.variables(),
            ..CreateSession::default()
        };
        let agent = AgentRequest {
            permissions: Some(permissions),
            resume,
            model: (self.name == "gemini").then(|| "gemini-2.5-flash".to_owned()),
            arguments: self.arguments(),
            ..AgentRequest::default()
        };
        self.scene.create(&format!("agent:{}", self.name), agent, base).await
    }

    /// The answer of the last turn, which must be ok.
    async fn answer(&self, session: &SessionId) -> String {
        let events = self.scene.events(session).await;
        let (ok, answer, error) = completed(&events);
        assert!(ok, "{}: {error:?}", self.name);
        answer
    }
}

impl Drop for RealAgent {
    fn drop(&mut self) {
        let _ = self.model.kill();
        let _ = self.model.wait();
    }
}

/// Everything that is promised of an agent, with the real one.
async fn check(name: &'static str) {
    let Some(mut agent) = RealAgent::start(name).await else { return };
    a_prompt_a_command_and_a_resume(&agent).await;
    a_permission(&agent).await;
    code_in_a_child(&agent).await;
    an_interrupt(&agent).await;
    a_failure(&agent).await;
    a_killed_node(&mut agent).await;
}

async fn a_prompt_a_command_and_a_resume(agent: &RealAgent) {
    let scene = &agent.scene;
    let session = agent.session(PermissionPolicy::Allow, None).await;
    let ended = scene.run(&session, "say hello").await;
    assert_eq!(ended.outcome, Some(Outcome::Ok), "{}: {ended:?}", agent.name);
    assert_eq!(ended.output.text.trim_end(), "hello", "{}", agent.name);
    scene.run(&session, "command touch made-by-command").await;
    assert!(scene.workspace.path().join("made-by-command").exists(), "{}", agent.name);
    let events = scene.events(&session).await;
    let commands: Vec<ActionPhase> = events.iter().filter_map(command_phase).collect();
    assert_eq!(commands.first(), Some(&ActionPhase::Started), "{}: {events:?}", agent.name);
    assert_eq!(commands.last(), Some(&ActionPhase::Completed), "{}: {events:?}", agent.name);
    let used = events
        .iter()
        .any(|event| matches!(event.kind, AgentEventKind::Usage(usage) if usage.output_tokens > 0));
    assert!(used, "{}: no usage", agent.name);
    let token = scene.token(&session).await;
    scene.client.close_session(&session, CloseQuery::default()).await.unwrap();
    // A new process of a new session goes on with the conversation, and tells nothing old.
    let resumed = agent.session(PermissionPolicy::Allow, Some(token.clone())).await;
    let id = scene.submit(&resumed, "resumed", "say again").await;
    turn_ended(&scene.client, &resumed, &id, 4 * PATIENCE).await.unwrap();
    assert_eq!(agent.answer(&resumed).await.trim_end(), "again", "{}", agent.name);
    assert_eq!(scene.token(&resumed).await, token);
    let told = serde_json::to_string(&scene.events(&resumed).await).unwrap();
    assert!(!told.contains("hello"), "{}: an old message is told again", agent.name);
    scene.client.close_session(&resumed, CloseQuery::default()).await.unwrap();
}

fn command_phase(event: &AgentEvent) -> Option<ActionPhase> {
    match &event.kind {
        AgentEventKind::Action { action: ActionKind::Command, phase, .. } => Some(*phase),
        _ => None,
    }
}

async fn a_permission(agent: &RealAgent) {
    let scene = &agent.scene;
    for (answer, is_made) in [("p1 allow\n", true), ("p1 deny\n", false)] {
        let session = agent.session(PermissionPolicy::Ask, None).await;
        let file = scene.workspace.path().join("made-by-permission");
        let _ = std::fs::remove_file(&file);
        let id = scene.submit(&session, "asks", "command touch made-by-permission").await;
        let prompt = scene.waits_for_input(&session).await;
        assert!(prompt.contains("touch made-by-permission"), "{}: {prompt}", agent.name);
        let input = TurnInput { text: Some(answer.to_owned()), ..<_>::default() };
        scene.client.send_input(&session, &id, &input).await.unwrap();
        scene.ended(&session, &id).await;
        assert_eq!(file.exists(), is_made, "{}: {answer}", agent.name);
        let decisions = scene.decisions(&session).await;
        assert_eq!(decisions.len(), 1, "{}: {decisions:?}", agent.name);
        assert_eq!(decisions[0].2, is_made);
        scene.client.close_session(&session, CloseQuery::default()).await.unwrap();
    }
}

/// The agent finds the session's MCP server, and its code runs in a child of its session.
async fn code_in_a_child(agent: &RealAgent) {
    let scene = &agent.scene;
    let session = agent.session(PermissionPolicy::Allow, None).await;
    for (code, file) in
        [("mark = 6 * 7", None), ("open(f'made-{mark}', 'w').close()", Some("made-42"))]
    {
        let ended = scene.run(&session, &format!("run {code}")).await;
        assert_eq!(ended.outcome, Some(Outcome::Ok), "{}: {ended:?}", agent.name);
        let made = file.is_none_or(|file| scene.workspace.path().join(file).exists());
        assert!(made, "{}: {:?}", agent.name, scene.events(&session).await);
    }
    let children = scene.children(&session).await;
    assert_eq!(children.len(), 1, "{}: {children:?}", agent.name);
    assert_eq!(children[0].turns, 2, "{}", agent.name);
    scene.client.close_session(&session, CloseQuery::default()).await.unwrap();
    assert!(scene.children(&session).await.is_empty(), "{}", agent.name);
    // An agent that must ask asks before its code runs.
    let session = agent.session(PermissionPolicy::Ask, None).await;
    let id = scene.submit(&session, "asks", "run open('asked', 'w').close()").await;
    let prompt = scene.waits_for_input(&session).await;
    assert!(prompt.contains("run"), "{}: {prompt}", agent.name);
    let input = TurnInput { text: Some("p1 deny\n".to_owned()), ..<_>::default() };
    scene.client.send_input(&session, &id, &input).await.unwrap();
    scene.ended(&session, &id).await;
    assert!(!scene.workspace.path().join("asked").exists(), "{}", agent.name);
    assert!(scene.children(&session).await.is_empty(), "{}", agent.name);
    scene.client.close_session(&session, CloseQuery::default()).await.unwrap();
}

async fn an_interrupt(agent: &RealAgent) {
    let scene = &agent.scene;
    let session = agent.session(PermissionPolicy::Allow, None).await;
    // claude refuses a plain `sleep`. The mark is in the arguments of the process.
    let mark = format!("left-{}-{}", agent.name, std::process::id());
    let left = || {
        let all = processes::all().into_iter();
        all.filter(|found| processes::mentions(found.pid, mark.as_bytes())).count()
    };
    let prompt = format!("command perl -e 'sleep 300' {mark}");
    // `codex exec` tells no parts of a message.
    let streams = agent.program.is_none().then_some(("stream", "slow"));
    for (turn, prompt) in [("command", &*prompt)].into_iter().chain(streams) {
        let id = scene.submit(&session, turn, prompt).await;
        match turn {
            "command" => scene.until(|_| left() >= 1).await,
            _ => {
                let streams = async {
                    while !serde_json::to_string(&scene.events(&session).await)
                        .unwrap()
                        .contains("\"w1 ")
                    {
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    }
                };
                // gemini can resume only in the next minute.
                windlass_testkit::within(4 * PATIENCE, streams).await;
            }
        }
        scene.client.interrupt_turn(&session, &id).await.unwrap();
        let ended = turn_ended(&scene.client, &session, &id, PATIENCE).await.unwrap();
        assert_eq!(ended.outcome, Some(Outcome::Interrupted), "{}: {ended:?}", agent.name);
        assert_eq!(left(), 0, "{}", agent.name);
        let (ok, _, error) = completed(&scene.events(&session).await);
        assert!(!ok && error.is_none(), "{}: {error:?}", agent.name);
    }
    // The conversation goes on.
    let id = scene.submit(&session, "after", "say after").await;
    turn_ended(&scene.client, &session, &id, 4 * PATIENCE).await.unwrap();
    assert_eq!(agent.answer(&session).await.trim_end(), "after", "{}", agent.name);
    scene.client.close_session(&session, CloseQuery::default()).await.unwrap();
}

async fn a_failure(agent: &RealAgent) {
    let scene = &agent.scene;
    let session = agent.session(PermissionPolicy::Allow, None).await;
    let id = scene.submit(&session, "fails", "error 400").await;
    let ended = turn_ended(&scene.client, &session, &id, 4 * PATIENCE).await.unwrap();
    assert_eq!(ended.outcome, Some(Outcome::Error), "{}: {ended:?}", agent.name);
    let (ok, _, error) = completed(&scene.events(&session).await);
    assert!(!ok && error.is_some(), "{}", agent.name);
    scene.client.close_session(&session, CloseQuery::default()).await.unwrap();
    let missing = ResumeToken::new(agent.name, "00000000-0000-4000-8000-000000000000").unwrap();
    let refused = AgentRequest { resume: Some(missing), ..AgentRequest::default() };
    let create = CreateSession {
        worker: Some(format!("agent:{}", agent.name)),
        interpreter: None,
        agent: Some(refused),
        env: agent.variables(),
        ..TestNode::create()
    };
    let error = scene.client.create_session(&create).await.unwrap_err().to_string();
    assert!(error.contains("no conversation"), "{error}");
}

async fn a_killed_node(agent: &mut RealAgent) {
    let session = agent.session(PermissionPolicy::Allow, None).await;
    let turn = named_turn("killed", "command perl -e 'sleep 3; print 42'");
    agent.scene.client.submit_turn(&session, &turn).await.unwrap();
    agent.scene.started(&session).await;
    for _ in 0..3 {
        agent.scene.node.restart().await.unwrap();
    }
    agent.scene.client = agent.scene.node.client().await.unwrap();
    let id = turn.id.unwrap();
    let ended = turn_ended(&agent.scene.client, &session, &id, 2 * PATIENCE).await.unwrap();
    assert_eq!(ended.outcome, Some(Outcome::Ok), "{}: {ended:?}", agent.name);
    assert_eq!(agent.answer(&session).await.trim_end(), "done", "{}", agent.name);
    let events = agent.scene.events(&session).await;
    let is_start = |event: &&AgentEvent| matches!(event.kind, AgentEventKind::Started { .. });
    assert_eq!(events.iter().filter(is_start).count(), 1, "{}", agent.name);
    agent.scene.client.close_session(&session, CloseQuery::default()).await.unwrap();
}

#[tokio::test]
async fn contract_93_codex_does_what_is_promised() {
    check("codex").await;
}

/// A codex that does not know `app-server`, made of the real one.
const OLD_CODEX: &str = "#!/bin/sh
case \" $* \" in *' app-server '*) echo 'unrecognized subcommand' >&2; exit 2;; esac
exec codex \"$@\"
";

#[tokio::test]
async fn contract_93_a_codex_without_its_server_runs_by_exec() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(mut agent) = RealAgent::start("codex").await else { return };
    agent.scene.write("old-codex", OLD_CODEX);
    let program = agent.scene.workspace.path().join("old-codex");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    agent.program = Some(program.display().to_string());
    a_prompt_a_command_and_a_resume(&agent).await;
    let session = agent.session(PermissionPolicy::Allow, None).await;
    let ended = agent.scene.run(&session, "run open('made-by-exec', 'w').close()").await;
    assert_eq!(ended.outcome, Some(Outcome::Ok), "{ended:?}");
    assert!(agent.scene.workspace.path().join("made-by-exec").exists());
    an_interrupt(&agent).await;
    a_failure(&agent).await;
    a_killed_node(&mut agent).await;
    let asks = agent.session(PermissionPolicy::Ask, None).await;
    let ended = agent.scene.run(&asks, "say hello").await;
    assert_eq!(ended.outcome, Some(Outcome::Error), "{ended:?}");
    let (_, _, error) = completed(&agent.scene.events(&asks).await);
    assert!(error.unwrap().message.contains("cannot ask"));
}

#[tokio::test]
async fn contract_93_claude_does_what_is_promised() {
    check("claude").await;
}

#[tokio::test]
async fn contract_93_opencode_does_what_is_promised() {
    check("opencode").await;
}

/// Not part of the contract's run: it waits for the next minute again and again. Run it by its name.
#[tokio::test]
async fn gemini_does_what_is_promised() {
    check("gemini").await;
}
