//! The contract lines on survival that concern the disk, 31 and 32: a full disk, and a journal whose end is
//! truncated or garbled. Kills and upgrades are in `contract_survival`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use windlass_client::Client;
use windlass_client::protocol::api::{
    EventItem, SessionState, StopSessions, SubmitTurn, TurnInput, TurnQuery, TurnState,
};
use windlass_client::protocol::event::{DropReason, EndReason};
use windlass_client::protocol::storage::IndexStorage;
use windlass_client::protocol::{ErrorCode, EventKind, Outcome, Seq, SessionId};
use windlass_testkit::{
    Gate, PATIENCE, TestNode, all_events, named_turn, processes, run, run_ok, turn, turn_ended,
    within,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_windlass");

/// Free space for the turn that fills the disk: its start fits, the rest does not.
const LEFT_BYTES: u64 = 256 * 1024;

/// More bytes than the disk of any test holds.
const FLOOD: &str = "for n in range(1_000_000):\n    print(f'{n:>99}')";

#[tokio::test]
async fn contract_31_a_turn_on_a_full_disk_fails_by_name_and_works_again_with_free_space() {
    let Some(disk) = SmallDisk::mount() else { return };
    let node = TestNode::builder(PROGRAM).state_dir(disk.state()).start().await.unwrap();
    let client = node.client().await.unwrap();
    let full = node.session(&client).await.unwrap().id;
    let other = node.session(&client).await.unwrap().id;
    run_ok(&client, &full, "x = 40").await;
    run_ok(&client, &other, "y = 41").await;

    disk.fill(LEFT_BYTES);
    let failed = run(&client, &full, FLOOD).await;
    assert_eq!(failed.outcome, Some(Outcome::Error), "{:?}", failed.error);
    let error = failed.error.unwrap();
    assert_eq!(error.code, Some(ErrorCode::DiskFull), "{error:?}");
    assert!(error.message.contains("make room"), "no remedy: {error:?}");

    disk.fill(0);
    let long = long_code();
    for session in [&full, &other] {
        let refused = client.submit_turn(session, &turn(long.as_str())).await.unwrap_err();
        assert_eq!(refused.api_code(), Some(ErrorCode::DiskFull), "{refused:?}");
        assert!(refused.remedy().contains("make room"), "{refused:?}");
        assert_eq!(client.session(session).await.unwrap().state, SessionState::Idle);
    }
    let refused = client.create_session(&TestNode::create()).await.unwrap_err();
    assert_eq!(refused.api_code(), Some(ErrorCode::DiskFull), "{refused:?}");

    disk.free();
    assert_eq!(run_ok(&client, &full, "x + 2").await, "42\n");
    assert_eq!(run_ok(&client, &other, "y + 1").await, "42\n");
    let fresh = node.session(&client).await.unwrap().id;
    assert_eq!(run_ok(&client, &fresh, "6 * 7").await, "42\n");
    assert_eq!(client.node_status().await.unwrap().pid, node.pid());
    check_record_of_full_disk(&all_events(&client, &full).await);
}

/// The journal shows the full disk too: event numbers have no gap, the missing bytes are counted, each turn
/// ends once, and the failed turn has its code.
fn check_record_of_full_disk(events: &[EventItem]) {
    let mut missing = 0;
    let mut ends = Vec::new();
    for (place, item) in events.iter().enumerate() {
        assert_eq!(item.event.seq.0, place as u64 + 1);
        match &item.event.kind {
            EventKind::OutputDropped { bytes, reason: DropReason::DiskFull } => missing += bytes,
            EventKind::TurnEnded { error, .. } => {
                ends.push((item.event.turn.unwrap().0, error.as_ref().and_then(|e| e.code)));
            }
            _ => {}
        }
    }
    assert!(missing > 0, "no byte is said to be missing");
    assert_eq!(ends, [(1, None), (2, Some(ErrorCode::DiskFull)), (3, None)]);
}

#[tokio::test]
async fn contract_31_a_node_that_ends_while_the_disk_is_full_leaves_its_sessions_whole() {
    for way in [Going::Killed, Going::Stopped] {
        let Some(disk) = SmallDisk::mount() else { return };
        let mut node = TestNode::builder(PROGRAM).state_dir(disk.state()).start().await.unwrap();
        let client = node.client().await.unwrap();
        let session = node.session(&client).await.unwrap().id;
        run_ok(&client, &session, "x = 40").await;
        disk.fill(LEFT_BYTES);
        let failed = run(&client, &session, FLOOD).await;
        assert_eq!(failed.error.unwrap().code, Some(ErrorCode::DiskFull), "{way:?}");
        // The end of the turn was reported, but is not in the journal yet when the node ends.
        disk.fill(0);
        match way {
            Going::Killed => node.kill9(),
            Going::Stopped => node.stop(StopSessions::Keep).await.unwrap(),
        }
        disk.free();
        node.restart().await.unwrap();
        let query = TurnQuery { wait_ms: 10_000, output_bytes_max: None, ..TurnQuery::default() };
        let again = within(PATIENCE, client.turn(&session, &failed.id, query)).await.unwrap();
        let code = again.error.as_ref().and_then(|error| error.code);
        assert_eq!(code, Some(ErrorCode::DiskFull), "{way:?}: {again:?}");
        assert_eq!(run_ok(&client, &session, "x + 2").await, "42\n", "{way:?}");
    }
}

/// The event `input_taken` must not be lost. If it arrives together with output that does not fit on the
/// disk, the keeper holds both and the end of the turn, and that end may be `ok`.
#[tokio::test]
async fn contract_31_a_turn_that_failed_with_disk_full_is_still_failed_after_a_kill() {
    let Some(disk) = SmallDisk::mount() else { return };
    let mut node = TestNode::builder(PROGRAM).state_dir(disk.state()).start().await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let asking = run(&client, &session, "x = input(); print(x * 10_000)").await;
    assert_eq!(asking.state, TurnState::AwaitingInput, "{asking:?}");
    disk.fill(0);
    let input = TurnInput { text: Some("42\n".to_owned()), ..TurnInput::default() };
    within(PATIENCE, client.answer_turn(&session, &asking.id, &input)).await.unwrap();
    let told = turn_ended(&client, &session, &asking.id, PATIENCE).await.unwrap();
    assert_eq!(told.outcome, Some(Outcome::Error), "{told:?}");
    assert_eq!(told.error.unwrap().code, Some(ErrorCode::DiskFull));
    node.kill9();
    disk.free();
    node.restart().await.unwrap();
    let again = turn_ended(&client, &session, &asking.id, PATIENCE).await.unwrap();
    assert_eq!(again.outcome, Some(Outcome::Error), "{again:?}");
    assert_eq!(again.error.unwrap().code, Some(ErrorCode::DiskFull));
    run_ok(&client, &session, "print('on')").await;
}

#[tokio::test]
async fn contract_31_a_node_starts_and_serves_on_a_full_disk_and_says_so() {
    let Some(disk) = SmallDisk::mount() else { return };
    let mut node = TestNode::builder(PROGRAM).state_dir(disk.state()).start().await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    let first = run(&client, &session, "x = 40; print('before')").await;
    assert_eq!(client.node_status().await.unwrap().storage.unwrap().index, IndexStorage::File);

    disk.fill(0);
    // The last page of the log file still has free space.
    fill_file(&node.dirs().state.join("node.log"));
    node.restart().await.unwrap();
    let turn_before = client.turn(&session, &first.id, TurnQuery::default()).await.unwrap();
    assert_eq!(
        (turn_before.outcome, turn_before.output.text.as_str()),
        (Some(Outcome::Ok), "before\n")
    );
    let refused = client.submit_turn(&session, &turn(long_code())).await.unwrap_err();
    assert_eq!(refused.api_code(), Some(ErrorCode::DiskFull), "{refused:?}");
    let storage = client.node_status().await.unwrap().storage.unwrap();
    assert_eq!(storage.index, IndexStorage::Memory);
    assert!(storage.log_lines_dropped > 0, "the log had room: {storage:?}");
    let said = command(&node, &["status"]);
    assert!(said.contains("the disk is full") && said.contains("could not be written"), "{said}");
    let said = command(&node, &["doctor"]);
    assert!(said.contains("the disk is full"), "{said}");

    disk.free();
    assert_eq!(run_ok(&client, &session, "x + 2").await, "42\n");
    node.restart().await.unwrap();
    assert_eq!(run_ok(&client, &session, "x + 3").await, "43\n");
    assert_eq!(client.node_status().await.unwrap().storage.unwrap().index, IndexStorage::File);
    let turn_before = client.turn(&session, &first.id, TurnQuery::default()).await.unwrap();
    assert_eq!(turn_before.output.text, "before\n");
}

/// The output of a command about a node.
fn command(node: &TestNode, args: &[&str]) -> String {
    let dirs = node.dirs();
    let output = std::process::Command::new(PROGRAM)
        .args(args)
        .env("WINDLASS_RUNTIME_DIR", &dirs.runtime)
        .env("WINDLASS_STATE_DIR", &dirs.state)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Longer than the free space in the last page of a file can be.
fn long_code() -> String {
    format!("1 #{}", "x".repeat(16 * 1024))
}

/// Number of turns that wait while the disk fills: more than the owner of a session keeps in memory after
/// their end.
const QUEUED: usize = 20;

#[tokio::test]
async fn contract_31_an_id_whose_turn_ended_on_a_full_disk_never_runs_again() {
    let Some(disk) = SmallDisk::mount() else { return };
    let node = TestNode::builder(PROGRAM).state_dir(disk.state()).start().await.unwrap();
    let client = node.client().await.unwrap();
    let session = node.session(&client).await.unwrap().id;
    run_ok(&client, &session, "ran = []").await;
    let gate = Gate::new("full-disk").unwrap();
    client.submit_turn(&session, &named_turn("first", gate.python())).await.unwrap();
    let at_gate = within(PATIENCE, gate.reached()).await.unwrap();
    let queued: Vec<SubmitTurn> = (0..QUEUED)
        .map(|number| {
            named_turn(&format!("q{number}"), format!("ran.append({number}); print('x' * 20_000)"))
        })
        .collect();
    for submit in &queued {
        client.submit_turn(&session, submit).await.unwrap();
    }
    disk.fill(0);
    drop(at_gate);
    let mut told = Vec::new();
    for submit in &queued {
        let id = submit.id.clone().unwrap();
        let ended = turn_ended(&client, &session, &id, PATIENCE).await.unwrap();
        let code = ended.error.as_ref().and_then(|error| error.code);
        assert_eq!(code, Some(ErrorCode::DiskFull), "its output is not there: {ended:?}");
        told.push(ended);
    }
    // The id never runs again, with a full disk and with free space.
    for again in 0..2 {
        for (submit, ended) in queued.iter().zip(&told) {
            let same = client.submit_turn(&session, submit).await.unwrap();
            assert_eq!((same.number, same.outcome), (ended.number, ended.outcome), "{again}");
        }
        if again == 0 {
            disk.free();
        }
    }
    // The journal receives the missing events without a further request: the first turn, the turn at the gate
    // and all waiting turns have ended there.
    let mut events = client.events(&session, Seq(0));
    let mut ends = 0;
    while ends < 2 + QUEUED {
        let item = within(PATIENCE, events.next()).await.unwrap().unwrap();
        ends += usize::from(matches!(item.event.kind, EventKind::TurnEnded { .. }));
    }
    let ran = run_ok(&client, &session, "len(ran), len(set(ran))").await;
    let (all, different) = ran.trim().trim_matches(['(', ')']).split_once(", ").unwrap();
    assert_eq!(all, different, "some turn ran twice");
    for (submit, ended) in queued.iter().zip(&told) {
        let id = submit.id.clone().unwrap();
        let now = client.turn(&session, &id, TurnQuery::default()).await.unwrap();
        assert_eq!((now.number, now.outcome), (ended.number, ended.outcome));
    }
}

/// How a node ends.
#[derive(Debug, Clone, Copy)]
enum Going {
    Killed,
    Stopped,
}

#[tokio::test]
async fn contract_32_a_journal_cut_or_garbled_anywhere_opens_to_its_last_whole_record() {
    // The journal is the subject. A node with a zygote and pooled workers would start both anew for each damage.
    let mut node = TestNode::builder(PROGRAM).env("WINDLASS_START", "exec").start().await.unwrap();
    let client = node.client().await.unwrap();
    // The smallest quota has the smallest segments. The journal has several segments, and none was dropped.
    let mut create = TestNode::create();
    create.output_quota_bytes = Some(1);
    let session = client.create_session(&create).await.unwrap().session;
    run_ok(&client, &session.id, "import os\nfor _ in range(12): os.write(1, b'x' * 8000)").await;
    run(&client, &session.id, "print('almost')\n1 / 0").await;
    for n in 0..4 {
        run_ok(&client, &session.id, &format!("print('one of the last', {n})")).await;
    }
    let told = all_events(&client, &session.id).await;
    let keeper = client.session(&session.id).await.unwrap().keeper_pid.unwrap();
    node.kill9();
    // Without its keeper the session ends at the next start, and no more events follow.
    processes::kill(keeper);
    assert!(processes::wait_gone(keeper, PATIENCE));

    let journal = Journal::of(node.dirs().state.clone(), &session.id);
    let damages = journal.damages();
    assert!(damages.len() >= 30, "only {} kinds of damage", damages.len());
    for damage in damages {
        journal.harm(&damage);
        node.restart().await.unwrap();
        check_opened(&client, &session.id, &told, &damage).await;
        node.kill9();
    }
}

/// The journal has exactly the intact events, then the end of the turn and of the session.
async fn check_opened(client: &Client, session: &SessionId, told: &[EventItem], damage: &Damage) {
    let events = all_events(client, session).await;
    let whole = damage.whole;
    assert_eq!(events[..whole], told[..whole], "{damage:?}");
    for (place, item) in events.iter().enumerate().skip(whole) {
        assert_eq!(item.event.seq.0, place as u64 + 1, "{damage:?}");
    }
    let added: Vec<_> = events[whole..].iter().map(|item| &item.event.kind).collect();
    let (last, before) = added.split_last().unwrap_or_else(|| panic!("not ended: {damage:?}"));
    assert!(
        matches!(last, EventKind::SessionEnded { reason: EndReason::KeeperLost, .. }),
        "{last:?} after {damage:?}"
    );
    let open = told[..whole].iter().fold(0, |open, item| match item.event.kind {
        EventKind::TurnAccepted { more: false, .. } => open + 1,
        EventKind::TurnEnded { .. } => open - 1,
        _ => open,
    });
    assert_eq!(before.len(), open, "{before:?} after {damage:?}");
    for kind in before {
        let lost = matches!(kind, EventKind::TurnEnded { outcome: Outcome::Lost, .. });
        assert!(lost, "{kind:?} after {damage:?}");
    }
}

/// The journal of a session, and a copy of the whole state to restore before each case.
struct Journal {
    state: PathBuf,
    saved: tempfile::TempDir,
    newest: PathBuf,
    /// The newest segment: its bytes, and the offset where each record ends. The first record is the head.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Number of events before the newest segment.
    before: usize,
}

/// The damage to the newest segment, and how many events stay intact.
#[derive(Debug)]
struct Damage {
    kind: DamageKind,
    whole: usize,
}

#[derive(Debug)]
enum DamageKind {
    /// The file is truncated here.
    Cut(usize),
    /// One byte is changed.
    Flip(usize),
    /// Garbage after the end, as an unfinished write may leave it.
    Tail(Vec<u8>),
}

impl Journal {
    /// Reads the segments as `docs/journal.md` describes them, without the code of the journal.
    fn of(state: PathBuf, session: &SessionId) -> Self {
        let saved = tempfile::tempdir().unwrap();
        copy_dir(&state, saved.path());
        let dir = state.join("sessions").join(session.as_str());
        let mut segments: Vec<PathBuf> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        segments.sort();
        assert!(segments.len() > 1, "one segment is not enough");
        let newest = segments.pop().unwrap();
        let first_seq: usize = newest.file_stem().unwrap().to_str().unwrap().parse().unwrap();
        let bytes = fs::read(&newest).unwrap();
        let mut ends = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let length = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            at += 8 + length as usize;
            ends.push(at);
        }
        assert_eq!(at, bytes.len());
        assert!(ends.len() > 8, "the newest segment has only {} records", ends.len());
        Self { state, saved, newest, bytes, ends, before: first_seq - 1 }
    }

    /// Truncations and flipped bytes around and inside every record, and garbage of all kinds.
    fn damages(&self) -> Vec<Damage> {
        let mut damages = Vec::new();
        let mut start = 0;
        for (record, end) in self.ends.iter().copied().enumerate() {
            let middle = start + (end - start) / 2;
            // A truncation at a record border leaves intact records. A head without events is one case of it.
            damages.extend([[start + 1, end - 1, middle][record % 3], end].map(|at| self.cut(at)));
            let flips = [start, start + 5, start + 9, middle, end - 1];
            damages.push(self.flip(flips[record % flips.len()]));
            start = end;
        }
        let twice = self.bytes[self.ends[self.ends.len() - 2]..].to_vec();
        let head = self.bytes[..self.ends[0]].to_vec();
        for tail in [vec![0; 4096], vec![0xff; 7], b"garbage".to_vec(), twice, head] {
            damages
                .push(Damage { kind: DamageKind::Tail(tail), whole: self.whole_until(usize::MAX) });
        }
        damages
    }

    fn cut(&self, at: usize) -> Damage {
        Damage { kind: DamageKind::Cut(at), whole: self.whole_until(at) }
    }

    fn flip(&self, at: usize) -> Damage {
        Damage { kind: DamageKind::Flip(at), whole: self.whole_until(at) }
    }

    /// Number of intact events when everything from `at` on is damaged.
    fn whole_until(&self, at: usize) -> usize {
        let records = self.ends.iter().filter(|end| **end <= at).count();
        self.before + records.saturating_sub(1)
    }

    fn harm(&self, damage: &Damage) {
        fs::remove_dir_all(&self.state).unwrap();
        copy_dir(self.saved.path(), &self.state);
        let mut bytes = self.bytes.clone();
        match &damage.kind {
            DamageKind::Cut(at) => bytes.truncate(*at),
            DamageKind::Flip(at) => bytes[*at] ^= 0x55,
            DamageKind::Tail(tail) => bytes.extend_from_slice(tail),
        }
        fs::write(&self.newest, bytes).unwrap();
    }
}

fn copy_dir(from: &Path, to: &Path) {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_dir(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// A disk of 4 MiB. Only root can create it.
struct SmallDisk {
    place: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        let place = tempfile::Builder::new().prefix("wl-disk-").tempdir_in("/tmp").unwrap();
        let options = c"size=4m,mode=700";
        match mount("tmpfs", place.path(), "tmpfs", MountFlags::empty(), options) {
            Ok(()) => Some(Self { place }),
            Err(errno) => {
                windlass_testkit::skip(format_args!(
                    "a small disk cannot be mounted here: {errno}"
                ));
                None
            }
        }
    }

    fn state(&self) -> PathBuf {
        self.place.path().join("s")
    }

    /// Fills the disk up to `left` free bytes.
    fn fill(&self, left: u64) {
        let file = fill_file(&self.place.path().join("filler"));
        let length = file.metadata().unwrap().len();
        file.set_len(length.saturating_sub(left)).unwrap();
    }

    fn free(&self) {
        fs::remove_file(self.place.path().join("filler")).unwrap();
    }
}

/// Appends to a file until its disk is full.
fn fill_file(path: &Path) -> File {
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    let page = [1; 4096];
    loop {
        match file.write(&page) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return file,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The node of a failed test may still have files open there.
        let _ = unmount(self.place.path(), UnmountFlags::DETACH);
    }
}
