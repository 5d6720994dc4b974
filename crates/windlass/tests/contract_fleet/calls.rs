//! Every kind of call about a session, made through one node, with what each call returned. Two such lists of two
//! sessions are equal if the two nodes do the same.

use serde::Serialize;
use serde_json::{Value, json};
use windlass_client::files::{Expect, WriteBackChange};
use windlass_client::protocol::api::{
    CloseQuery, FilesQuery, ForkSession, OutputQuery, SearchQuery, SetSecretRules, SubmitTurn,
    Turn, TurnInput,
};
use windlass_client::protocol::{EventKind, Seq, SessionId, TurnId};
use windlass_client::{Client, ClientError};
use windlass_testkit::{PATIENCE, TestToolHost, named_turn, turn_ended, wait_for_event, within};

use crate::id;

/// Fields that differ between two sessions that did the same.
const VOLATILE: [&str; 15] = [
    "at_ms",
    "created_at_ms",
    "etag",
    // The place of a turn's output, behind a traceback that depends on the moment of an interrupt.
    "from",
    "keeper_pid",
    "last_at_ms",
    "link",
    "modified_ms",
    "output_bytes",
    "pid",
    "seq",
    "start_figures",
    "started_by",
    "usage",
    "worker_pid",
];

/// The calls of one session.
pub struct Calls {
    door: Client,
    session: SessionId,
    /// Texts that name this session or the node that owns it, each with the same text for every session.
    names: Vec<(String, &'static str)>,
    said: Vec<(&'static str, Value)>,
}

impl Calls {
    /// Makes all calls about `session` through `door`. `owner` is the parent of the directories of the node that has
    /// the session. The session is closed afterwards.
    pub async fn all(
        door: &Client,
        session: &SessionId,
        owner: &std::path::Path,
    ) -> Vec<(&'static str, Value)> {
        let names =
            vec![(session.to_string(), "SESSION"), (owner.display().to_string(), "DIRECTORY")];
        let mut calls =
            Self { door: door.clone(), session: session.clone(), names, said: Vec::new() };
        calls.turns().await;
        calls.waits().await;
        calls.output().await;
        calls.files().await;
        calls.tools().await;
        calls.twin().await;
        calls.ends().await;
        calls.said
    }

    /// Notes what a call returned: its value, or the whole error.
    fn note<T: Serialize>(&mut self, call: &'static str, said: Result<T, ClientError>) {
        let said = match said {
            Ok(value) => serde_json::to_value(value).unwrap(),
            Err(ClientError::Api(error)) => json!({"error": error}),
            Err(error) => panic!("{call} of {}: {error:?}", self.session),
        };
        let said = self.comparable(said);
        self.said.push((call, said));
    }

    fn comparable(&self, value: Value) -> Value {
        match value {
            Value::String(mut text) => {
                for (name, instead) in &self.names {
                    text = text.replace(name, instead);
                }
                Value::String(text)
            }
            Value::Array(values) => values.into_iter().map(|one| self.comparable(one)).collect(),
            Value::Object(fields) => {
                let kept =
                    fields.into_iter().filter(|(name, _)| !VOLATILE.contains(&name.as_str()));
                kept.map(|(name, value)| (name, self.comparable(value))).collect()
            }
            other => other,
        }
    }

    /// Runs a turn whose id is the name of the call.
    async fn run(&mut self, call: &'static str, code: &str) -> Turn {
        let ran = within(PATIENCE, self.door.run_turn(&self.session, named_turn(call, code))).await;
        let turn = ran.unwrap_or_else(|error| panic!("{call} of {}: {error:?}", self.session));
        self.note(call, Ok(&turn));
        turn
    }

    async fn turns(&mut self) {
        self.run("value", "x = 20; print('out'); x + 1").await;
        // The same id again is the same turn.
        self.run("value", "x = 20; print('out'); x + 1").await;
        self.run("to-stderr", "import sys; print('err', file=sys.stderr)").await;
        self.run("error", "1 / 0").await;
        let id = TurnId::chosen("streams").unwrap();
        let submit = SubmitTurn {
            id: Some(id.clone()),
            code: "print('a' * 100)".to_owned(),
            output_bytes_max: Some(20),
            stdout_bytes_max: Some(30),
            stderr_bytes_max: Some(30),
            deadline_ms: Some(20_000),
            ..SubmitTurn::default()
        };
        let ran = within(PATIENCE, self.door.run_turn(&self.session, submit)).await;
        self.note("streams", ran);
        let looked = self.door.turn(&self.session, &id, Default::default()).await;
        self.note("look at a turn", looked);
        let looked = self.door.session(&self.session).await;
        self.note("look at the session", looked);
    }

    /// Input, and an interrupt.
    async fn waits(&mut self) {
        let asking = self.run("asks", "name = input('Name? '); print('hi', name)").await;
        let input = TurnInput { text: Some("Ada\n".to_owned()), ..TurnInput::default() };
        let answered = self.door.answer_turn(&self.session, &asking.id, &input);
        let answered = within(PATIENCE, answered).await;
        self.note("input", answered);
        let late = self.door.send_input(&self.session, &asking.id, &input).await;
        self.note("input after the end", late.map(|_| ()));

        let before = self.door.session(&self.session).await.unwrap().seq;
        let code = "import time; print('begun', flush=True); time.sleep(600)";
        let busy = self.door.submit_turn(&self.session, &named_turn("sleeps", code)).await.unwrap();
        let is_output = |kind: &EventKind| matches!(kind, EventKind::Output { .. });
        wait_for_event(&self.door, &self.session, before, PATIENCE, |item| {
            is_output(&item.event.kind)
        })
        .await
        .unwrap();
        let interrupted = self.door.interrupt(&self.session).await;
        self.note("interrupt", interrupted.map(|turn| turn.id));
        let ended = turn_ended(&self.door, &self.session, &busy.id, PATIENCE).await.unwrap();
        // The traceback depends on the moment of the interrupt.
        self.note("interrupted", Ok((ended.outcome, ended.number)));
        let again = self.door.interrupt_turn(&self.session, &busy.id).await;
        self.note("interrupt after the end", again.map(|_| ()));
    }

    async fn output(&mut self) {
        let queries = [
            OutputQuery { from: Some(0), to: Some(8), ..OutputQuery::default() },
            OutputQuery { turn: Some("value".to_owned()), ..OutputQuery::default() },
            OutputQuery { turn: Some("value".to_owned()), tail: Some(3), ..OutputQuery::default() },
        ];
        for query in queries {
            let read = self.door.output(&self.session, &query).await;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let read = read.map(|read| (text(&read.bytes), read.from, read.next, read.dropped));
            self.note("output", read);
        }
        let query = SearchQuery { query: "Ada".to_owned(), ..SearchQuery::default() };
        let found = self.door.search_output(&self.session, &query).await;
        self.note("search", found);
        let shown = self.run("shows", "_ = display('<b>one</b>', mime='text/html')").await;
        let seq = shown.displays.first().unwrap_or_else(|| panic!("{shown:?}")).seq;
        let display = self.door.display(&self.session, seq).await;
        self.note("display", display.map(|display| (display.mime, display.bytes.to_vec())));
        let none = self.door.display(&self.session, Seq(999_999)).await;
        self.note("no display", none.map(|display| display.mime));
        let egress = self.door.egress(&self.session).await;
        self.note("egress", egress.map(|log| log.decisions));
        let rules = self.door.set_secret_rules(&self.session, &SetSecretRules::default()).await;
        self.note("set secret rules", rules);
        let rules = self.door.secret_rules(&self.session).await;
        self.note("secret rules", rules);
    }

    async fn files(&mut self) {
        let (door, session) = (self.door.clone(), self.session.clone());
        let put = door.put_file(&session, "a/one.txt", "first", &Expect::Anything).await;
        self.note("put", put);
        let again = door.put_file(&session, "a/one.txt", "second", &Expect::Absent).await;
        self.note("put over a file", again);
        self.list().await;
        let changes = vec![
            WriteBackChange::Put {
                path: "a/two.txt".to_owned(),
                content: "second".into(),
                expect: Expect::Absent,
            },
            WriteBackChange::Delete { path: "a/one.txt".to_owned(), expect: Expect::Anything },
        ];
        let written = door.write_back(&session, changes).await;
        self.note("write back", written);
        self.run("reads-a-file", "import os; sorted(os.listdir('a')), open('a/two.txt').read()")
            .await;
        for path in ["a/two.txt", "a/one.txt", "../one.txt"] {
            let read = door.read_file(&session, path).await;
            self.note("get", read.map(|bytes| bytes.to_vec()));
        }
        let deleted = door.delete_file(&session, "a/two.txt", &Expect::Anything).await;
        self.note("delete", deleted);
        self.list().await;
    }

    async fn list(&mut self) {
        let query = FilesQuery { recursive: true, ..FilesQuery::default() };
        let listed = self.door.files(&self.session, &query).await;
        self.note("list", listed);
    }

    /// A host behind this node, whose tool the session's code calls.
    async fn tools(&mut self) {
        let host = TestToolHost::offer(&self.door, &self.session, &["add"], |call| async move {
            let number = |name: &str| call.arguments[name].as_i64().unwrap_or_default();
            Ok(json!(number("a") + number("b")))
        });
        let host = within(PATIENCE, host).await.unwrap();
        let code = "tools.add(a=2, b=3), [tools.add(a=n, b=1) for n in range(20)]";
        self.run("calls-a-tool", code).await;
        // A megabyte as argument goes through in pieces.
        self.run("calls-with-much", "tools.add(a=1, b=1, text='x' * 1_000_000)").await;
        let listed = self.door.session_tools(&self.session, None).await;
        self.note("tools", listed);
        drop(host);
    }

    async fn twin(&mut self) {
        let door = self.door.clone();
        let twin = id(&format!("{}-twin", self.session));
        let fork = ForkSession { id: Some(twin.clone()), ..ForkSession::default() };
        let forked = within(PATIENCE, door.fork_session(&self.session, &fork)).await;
        self.note("fork", forked.map(|forked| (forked.session.id, forked.session.forked_from)));
        let ran = within(PATIENCE, door.run_turn(&twin, named_turn("in-twin", "x"))).await;
        self.note("turn of the twin", ran);
        let closed = within(PATIENCE, door.close_session(&twin, CloseQuery::default())).await;
        self.note("close the twin", closed);
        let reset = within(PATIENCE, door.reset_session(&self.session)).await;
        self.note("reset", reset.map(|session| session.id));
        self.run("after-reset", "'x' in globals()").await;
    }

    async fn ends(&mut self) {
        let mut kinds: Vec<Value> = Vec::new();
        let mut events = self.door.events(&self.session, Seq(0));
        let close = self.door.close_session(&self.session, CloseQuery::default());
        let closed = within(PATIENCE, close).await;
        self.note("close", closed);
        let follow = async {
            while let Some(item) = events.next().await? {
                // Output may arrive in one event or in several.
                let kind = serde_json::to_value(&item.event.kind).unwrap()["kind"].take();
                if kinds.last() != Some(&kind) {
                    kinds.push(kind);
                }
            }
            Ok::<(), ClientError>(())
        };
        let followed = within(PATIENCE, follow).await;
        // When a worker is ready or gone does not depend on who asks.
        kinds.retain(|kind| {
            !["confined", "worker_ready", "worker_ended"].iter().any(|other| kind == other)
        });
        self.note("follow", followed.map(|()| kinds));
        let late = self.door.submit_turn(&self.session, &named_turn("late", "1")).await;
        self.note("turn after the end", late.map(|turn| turn.id));
        let looked = self.door.session(&self.session).await;
        self.note("look after the end", looked);
    }
}
