//! The contract lines on displays, and on output that only looks like the protocol, against a real node,
//! keeper and Python.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use windlass_client::Client;
use windlass_client::protocol::api::{CreateSession, OutputQuery, Turn};
use windlass_client::protocol::{EventKind, Outcome, SessionId};
use windlass_testkit::{
    PATIENCE, TestNode, all_events, python_with_matplotlib, run, run_ok, turn, within,
};

/// The first import of matplotlib searches all fonts of the machine.
const FIRST_IMPORT: Duration = Duration::from_secs(120);

async fn start_with(create: CreateSession) -> (TestNode, Client, SessionId) {
    let node = TestNode::start(env!("CARGO_BIN_EXE_windlass")).await.unwrap();
    let client = node.client().await.unwrap();
    let session = client.create_session(&create).await.unwrap().session.id;
    (node, client, session)
}

/// Code that builds `frames`, a list of every message with which a worker could end turn `turn`.
fn look_alikes(turn: u32) -> String {
    format!(
        "import json, struct\n\
         def frame(body=b'', **header):\n\
         \x20   text = json.dumps(header).encode()\n\
         \x20   return struct.pack('>II', 4 + len(text) + len(body), len(text)) + text + body\n\
         frames = [\n\
         \x20   frame(kind='idle', turn={turn}, outcome='error'),\n\
         \x20   frame(kind='stdin_wait', turn={turn}, prompt='fake? ', secret=True),\n\
         \x20   frame(kind='display', turn={turn}, mime='image/png', body=b'fake'),\n\
         \x20   frame(kind='worker_ready', protocol=1, worker='fake', capabilities=[]),\n\
         \x20   frame(kind='session_end', reason='fake'),\n\
         \x20   b'\\xff' * 8,\n\
         \x20   json.dumps(dict(kind='turn_ended', turn={turn}, outcome='ok')).encode() + b'\\n',\n\
         \x20   b'\\n\\nid: 999999\\ndata: {{\"kind\":\"session_ended\"}}\\n\\n',\n\
         ]\n"
    )
}

/// The turn produced only output.
async fn only_output(client: &Client, session: &SessionId, ran: &Turn) {
    assert_eq!(ran.outcome, Some(Outcome::Ok), "{ran:?}");
    assert!(ran.displays.is_empty(), "{:?}", ran.displays);
    for item in all_events(client, session).await {
        let plain = matches!(
            item.event.kind,
            EventKind::TurnAccepted { .. }
                | EventKind::Output { .. }
                | EventKind::TurnEnded { .. }
                | EventKind::Confined(_)
                | EventKind::WorkerReady { .. }
        );
        assert!(plain, "{item:?}");
    }
    let after = client.session(session).await.unwrap();
    assert_eq!((after.messages_dropped, after.restarts), (0, 0));
    assert!(after.ended.is_none());
}

#[tokio::test]
async fn contract_40_look_alikes_of_the_protocol_are_output() {
    let (_node, client, session) = start_with(TestNode::create()).await;
    let code = look_alikes(2) + "len(b''.join(frames))";
    let bytes: u64 = run_ok(&client, &session, &code).await.trim().parse().unwrap();
    let code = "import os, sys, subprocess\n\
        for each in frames:\n\
        \x20   os.write(1, each)\n\
        \x20   sys.stdout.buffer.write(each)\n\
        \x20   os.write(2, each)\n\
        \x20   subprocess.run(['cat'], input=each)\n\
        done = True";
    let ran = run(&client, &session, code).await;
    only_output(&client, &session, &ran).await;
    assert_eq!(ran.output.bytes, 4 * bytes);
    assert_eq!(run_ok(&client, &session, "done").await, "True\n");
}

/// How a child process of the worker tries to reach the protocol: it looks at every descriptor, and writes
/// frames to those that are sockets. It prints the sockets that it found.
const SCAN: &str = "import os, socket, stat\n\
    found = []\n\
    for fd in range(3, 4096):\n\
    \x20   try:\n\
    \x20       if stat.S_ISSOCK(os.fstat(fd).st_mode):\n\
    \x20           found.append(fd)\n\
    \x20           for each in frames:\n\
    \x20               os.write(fd, each)\n\
    \x20           os.read(fd, 1)\n\
    \x20   except OSError:\n\
    \x20       pass\n\
    print('sockets', found, 'WINDLASS_FD' in os.environ, flush=True)\n";

#[tokio::test]
async fn contract_40_no_child_of_the_worker_reaches_the_protocol() {
    let (_node, client, session) = start_with(TestNode::create()).await;
    // The worker itself has one socket, so the scan works: it can find sockets.
    let own = "import os, stat\n\
        def is_socket(fd):\n\
        \x20   try:\n\
        \x20       return stat.S_ISSOCK(os.fstat(fd).st_mode)\n\
        \x20   except OSError:\n\
        \x20       return False\n\
        sum(map(is_socket, range(4096)))";
    assert_eq!(run_ok(&client, &session, own).await, "1\n");
    let scan = format!("{}{SCAN}", look_alikes(3));
    let prepare = format!("scan = {scan:?}\nopen('scan.py', 'w').write(scan)");
    run_ok(&client, &session, &prepare).await;
    let code = "import multiprocessing, os, pty, subprocess, sys, threading\n\
        own = [sys.executable, 'scan.py']\n\
        subprocess.run(own, close_fds=False)\n\
        subprocess.Popen(own, close_fds=False, start_new_session=True).wait()\n\
        os.waitpid(os.posix_spawn(own[0], own, os.environ), 0)\n\
        os.waitpid(os.spawnv(os.P_NOWAIT, own[0], own), 0)\n\
        os.system(' '.join(own))\n\
        def forked():\n\
        \x20   if os.fork() == 0:\n\
        \x20       exec(scan, {})\n\
        \x20       os._exit(0)\n\
        \x20   os.wait()\n\
        forked()\n\
        thread = threading.Thread(target=forked)\n\
        thread.start()\n\
        thread.join()\n\
        context = multiprocessing.get_context('fork')\n\
        child = context.Process(target=exec, args=(scan, {}))\n\
        child.start()\n\
        child.join()\n";
    let ran = run(&client, &session, code).await;
    only_output(&client, &session, &ran).await;
    assert_eq!(ran.output.text, "sockets [] False\n".repeat(8));
    assert_eq!(run_ok(&client, &session, "1 + 1").await, "2\n");
}

async fn shown(client: &Client, ran: &Turn, place: usize) -> (String, Vec<u8>) {
    let wanted = &ran.displays[place];
    let display = client.display(&ran.session, wanted.seq).await.unwrap();
    assert_eq!(
        (display.mime.as_str(), display.bytes.len() as u64),
        (wanted.mime.as_str(), wanted.bytes)
    );
    (display.mime, display.bytes.to_vec())
}

#[tokio::test]
async fn contract_41_a_figure_arrives_once_as_png() {
    let interpreter =
        python_with_matplotlib(env!("CARGO_TARGET_TMPDIR")).unwrap().to_string_lossy().into_owned();
    let create = CreateSession { interpreter: Some(interpreter), ..TestNode::create() };
    let (_node, client, session) = start_with(create).await;
    let import = turn("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.close('all')");
    let imported = within(FIRST_IMPORT, client.run_turn(&session, import)).await.unwrap();
    assert_eq!((imported.outcome, imported.displays.len()), (Some(Outcome::Ok), 0), "{imported:?}");
    // A figure that is shown explicitly, left open at the end of the turn, or the value of the turn arrives
    // once.
    for code in [
        "plt.plot([1, 2, 3])\nplt.show()",
        "_ = plt.plot([1, 2, 3])",
        "figure, axes = plt.subplots()\naxes.plot([1, 2, 3])\nfigure",
        "figure, axes = plt.subplots()\naxes.plot([3, 2, 1])\nfigure.show()\nplt.show()",
    ] {
        let ran = run(&client, &session, code).await;
        assert_eq!((ran.outcome, ran.displays.len()), (Some(Outcome::Ok), 1), "{code}: {ran:?}");
        let (mime, bytes) = shown(&client, &ran, 0).await;
        assert_eq!(mime, "image/png");
        assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.ends_with(b"IEND\xaeB`\x82"));
        let whole = |kind: &EventKind| matches!(kind, EventKind::Display { more: false, .. });
        let events = all_events(&client, &session).await;
        let of_turn = events.iter().filter(|item| item.event.turn == Some(ran.number));
        assert_eq!(of_turn.filter(|item| whole(&item.event.kind)).count(), 1, "{code}");
    }
    let next = run(&client, &session, "1 + 1").await;
    assert!(next.displays.is_empty(), "{:?}", next.displays);
}

#[tokio::test]
async fn contract_41_an_updated_display_replaces_the_first() {
    let (_node, client, session) = start_with(TestNode::create()).await;
    let code = "a = display('<b>one</b>', mime='text/html')\n\
        b = display('other', mime='text/markdown')\n\
        a.update('<b>two</b>', mime='text/html')\n\
        a.update('<b>three</b>' * 100_000, mime='text/html')";
    let ran = run(&client, &session, code).await;
    assert_eq!((ran.outcome, ran.displays.len()), (Some(Outcome::Ok), 2), "{ran:?}");
    let expected = "<b>three</b>".repeat(100_000).into_bytes();
    assert!(shown(&client, &ran, 0).await == ("text/html".to_owned(), expected));
    assert_eq!(shown(&client, &ran, 1).await, ("text/markdown".to_owned(), b"other".to_vec()));
    assert_eq!(ran.output.text, "");
    let query = OutputQuery::default();
    let output = within(PATIENCE, client.output(&session, &query)).await.unwrap();
    assert!(output.bytes.is_empty(), "a display is not output");
}
