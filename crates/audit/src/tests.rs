//! Tests of a whole log in a directory: what is written, what is repaired, what is removed, and what `verify` finds.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::json;

use crate::queue::{LogCounters, WAITING_CODE_BYTES_MAX};
use crate::writer::AuditWriter;
use crate::*;

/// How long a writer may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

fn entry(did: &'static str, what: AuditDetails) -> AuditEntry {
    let who = Arc::new(AuditActor { door: "socket", uid: Some(1000), ..AuditActor::default() });
    let at_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    AuditEntry { at_ms: at_ms.try_into().unwrap(), who, did, session: Some("s1".into()), what }
}

fn numbered(number: u64) -> AuditEntry {
    entry("turn.submit", AuditDetails::default().with("turn", number))
}

fn large() -> AuditEntry {
    entry("turn.submit", AuditDetails::default().with("text", "x".repeat(900)))
}

/// Writes entries as one start of a node does.
fn write(dir: &Path, options: AuditOptions, entries: Vec<AuditEntry>) -> AuditStanding {
    let log = AuditLog::start(dir.to_owned(), options);
    entries.into_iter().for_each(|entry| log.record(entry));
    log.finish(PATIENCE);
    log.standing()
}

fn write_numbers(dir: &Path, numbers: std::ops::Range<u64>) {
    let standing = write(dir, AuditOptions::default(), numbers.map(numbered).collect());
    assert_eq!((standing.dropped, standing.is_behind), (0, false));
}

fn all(dir: &Path) -> Vec<AuditRecord> {
    let found = find(dir, &AuditFilter { limit: usize::MAX, ..AuditFilter::default() }).unwrap();
    assert_eq!(found.damaged_lines, 0);
    found.records
}

fn acts(dir: &Path) -> Vec<String> {
    all(dir).into_iter().map(|record| record.did).collect()
}

/// The files of a log, oldest first.
fn files(dir: &Path) -> Vec<PathBuf> {
    files::list(dir).unwrap().into_iter().map(|file| file.path).collect()
}

fn problem(dir: &Path) -> String {
    verify(dir, None).unwrap_err().to_string()
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn records_are_chained_also_across_starts() {
    let dir = temp();
    assert!(matches!(verify(dir.path(), None), Err(AuditProblem::NoLog)));
    write_numbers(dir.path(), 0..3);
    write_numbers(dir.path(), 3..5);
    let records = all(dir.path());
    assert_eq!(records.iter().map(|one| one.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    for pair in records.windows(2) {
        assert_eq!(pair[0].hash, pair[1].prev);
    }
    let chain = verify(dir.path(), None).unwrap();
    assert_eq!((chain.first, chain.head.seq, chain.records, chain.files), (1, 5, 5, 1));
    assert_eq!(chain.head.hash, records[4].hash);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(dir.path()), mode(&files(dir.path())[0])), (0o700, 0o600));
}

#[test]
fn a_line_has_the_documented_form() {
    let mut text = String::new();
    let code = Bytes::from_static(b"1+1");
    let what = AuditDetails::default().with("turn", 1_u64).with("last", true);
    let mut one = entry("turn.submit", what);
    one.what.add("code", AuditDetail::Code(code));
    one.at_ms = 7;
    line::append(&mut text, &ChainHead::start(), &one);
    let zeros = "0".repeat(64);
    let sha256 = line::sha256(b"1+1");
    let hashed = format!(
        "{{\"v\":1,\"seq\":1,\"at_ms\":7,\"who\":{{\"door\":\"socket\",\"uid\":1000}},\"did\":\"turn.submit\",\
         \"session\":\"s1\",\"what\":{{\"turn\":1,\"last\":true,\"code_bytes\":3,\"code_sha256\":\"{sha256}\"}},\
         \"prev\":\"{zeros}\"}}"
    );
    let hash = line::sha256(hashed.as_bytes());
    let begin = hashed.strip_suffix('}').unwrap();
    assert_eq!(text, format!("{begin},\"hash\":\"{hash}\"}}\n"));
    assert!(line::read(text.trim_end().as_bytes()).is_ok());
}

#[test]
fn texts_are_bounded_and_have_no_control_characters() {
    let dir = temp();
    let mut odd = entry("file.put", AuditDetails::default().with("path", "a\n\u{1b}[2J\u{202e}b"));
    Arc::make_mut(&mut odd.who).client = Some("c\r\n".repeat(10_000));
    odd.session = Some("s\0".to_owned());
    odd.what.add("list", json!(["x\u{7}", {"k\n": "é".repeat(5000)}]));
    let huge: Vec<_> = (0..1000).map(|_| "y".repeat(100)).collect();
    let entries = vec![odd, entry("file.put", AuditDetails::default().with("all", json!(huge)))];
    write(dir.path(), AuditOptions::default(), entries);
    let text = fs::read_to_string(&files(dir.path())[0]).unwrap();
    assert!(text.lines().all(|line| line.len() < line::LINE_BYTES_MAX));
    assert!(
        !text.contains("\\u00") && !text.contains("\\n") && !text.contains('\u{202e}'),
        "{text}"
    );
    let records = all(dir.path());
    assert_eq!(records[0].what["path"], "a\u{fffd}\u{fffd}[2J\u{fffd}b");
    assert_eq!(records[0].session.as_deref(), Some("s\u{fffd}"));
    assert!(records[0].who["client"].as_str().unwrap().len() < 1000);
    assert!(records[1].what["all"]["left_out_bytes"].as_u64().unwrap() > 100_000);
    verify(dir.path(), None).unwrap();
}

#[test]
fn a_file_is_closed_when_it_is_large_and_old_files_are_removed_with_a_record() {
    let dir = temp();
    let options = AuditOptions { max_total_bytes: 256 * 1024, ..AuditOptions::default() };
    for _ in 0..10 {
        write(dir.path(), options, (0..100).map(|_| large()).collect());
        verify(dir.path(), None).unwrap();
    }
    let found = files(dir.path());
    let bytes: u64 = found.iter().map(|path| fs::metadata(path).unwrap().size()).sum();
    assert!(found.len() >= 2 && bytes < 512 * 1024, "{bytes} bytes in {found:?}");
    let chain = verify(dir.path(), None).unwrap();
    assert!(chain.first > 1 && chain.head.seq > 1000, "{chain:?}");
    assert!(acts(dir.path()).contains(&"audit.removed".to_owned()));
    // One more file goes, without a record.
    fs::remove_file(&found[0]).unwrap();
    assert!(problem(dir.path()).contains("no record says that the node has removed them"));
}

#[test]
fn a_file_is_removed_when_its_last_record_is_old() {
    let dir = temp();
    let options = AuditOptions { max_total_bytes: u64::MAX, ..AuditOptions::default() };
    let mut old = numbered(1);
    old.at_ms = 1;
    // The first record is old, so the second start begins a file.
    write(dir.path(), options, vec![old]);
    write(dir.path(), options, vec![numbered(2)]);
    let found = files(dir.path());
    assert_eq!(found.len(), 2);
    let year_ago = SystemTime::now() - Duration::from_secs(365 * 24 * 3600);
    File::options().write(true).open(&found[0]).unwrap().set_modified(year_ago).unwrap();
    write(dir.path(), options, vec![numbered(3)]);
    assert_eq!(files(dir.path()), found[1..]);
    let records = all(dir.path());
    let removed = records.iter().find(|one| one.did == "audit.removed").unwrap();
    assert_eq!(removed.what["through"], 1);
    let chain = verify(dir.path(), None).unwrap();
    assert_eq!(chain.first, 2);
    let hash = removed.what["hash"].as_str().unwrap().to_owned();
    // Who can write the log can also write such a record.
    let anchor = Anchor { seq: 1, hash };
    let unproven = verify(dir.path(), Some(&anchor)).unwrap_err();
    assert!(matches!(unproven, AuditProblem::AnchorRemoved { seq: 1, first: 2, .. }), "{unproven}");
    let other = Anchor { seq: 1, hash: "0".repeat(64) };
    assert!(matches!(verify(dir.path(), Some(&other)), Err(AuditProblem::AnchorHash { .. })));
}

#[test]
fn an_incomplete_last_line_is_cut_off_and_recorded() {
    let dir = temp();
    write_numbers(dir.path(), 0..3);
    let path = files(dir.path()).remove(0);
    let content = fs::read(&path).unwrap();
    for cut in [1, 50] {
        fs::write(&path, &content[..content.len() - cut]).unwrap();
        assert!(problem(dir.path()).contains("line 3: the last line is incomplete"));
        write_numbers(dir.path(), 0..1);
        verify(dir.path(), None).unwrap();
        let records = all(dir.path());
        assert_eq!(records.len(), 4);
        assert_eq!(records[2].did, "audit.repaired");
        let line = content.split_inclusive(|byte| *byte == b'\n').next_back().unwrap();
        assert_eq!(records[2].what["cut_bytes"], line.len() - cut);
    }
    // Only a part of the first line was written.
    fs::write(&path, &content[..10]).unwrap();
    write_numbers(dir.path(), 0..1);
    assert_eq!(acts(dir.path()), ["audit.repaired", "turn.submit"]);
    verify(dir.path(), None).unwrap();
}

#[test]
fn a_node_goes_on_after_a_damaged_line_which_stays_to_be_found() {
    let dir = temp();
    write_numbers(dir.path(), 0..3);
    let path = files(dir.path()).remove(0);
    let mut content = fs::read(&path).unwrap();
    let last = content.len() - 100;
    content[last] ^= 1;
    fs::write(&path, content).unwrap();
    write_numbers(dir.path(), 0..1);
    assert_eq!(files(dir.path()).len(), 2);
    let found = find(dir.path(), &AuditFilter { limit: 9, ..AuditFilter::default() }).unwrap();
    assert_eq!((found.records.len(), found.damaged_lines), (4, 1));
    assert_eq!(found.records[2].did, "audit.damaged");
    assert!(problem(dir.path()).contains("audit-1.jsonl line 3: the line"));
}

#[test]
fn a_full_queue_drops_records_and_never_waits() {
    let (log, inbox) = AuditLog::stuck();
    for number in 0..AuditLog::QUEUE_MAX as u64 + 7 {
        log.record(numbered(number));
    }
    let standing = log.standing();
    assert_eq!((standing.dropped, standing.is_behind), (7, true));
    drop(inbox);
    log.record(numbered(0));
    assert_eq!(log.standing().dropped, 8);
}

#[test]
fn code_that_waits_for_its_hash_is_bounded() {
    let (log, inbox) = AuditLog::stuck();
    let most = WAITING_CODE_BYTES_MAX;
    let code = Bytes::from(vec![b'x'; most / 2]);
    for _ in 0..3 {
        let mut with_code = numbered(1);
        with_code.what.add("code", AuditDetail::Code(code.clone()));
        log.record(with_code);
    }
    assert_eq!(log.waiting_code(), most);
    assert_eq!(inbox.try_iter().count(), 3);
}

#[test]
fn the_next_record_tells_how_many_were_dropped() {
    let dir = temp();
    // A file stands where the directory should be.
    let place = dir.path().join("audit");
    fs::write(&place, "").unwrap();
    let counters = Arc::new(LogCounters::default());
    let mut writer = AuditWriter::new(place.clone(), AuditOptions::default(), counters.clone());
    writer.write(&[numbered(1), numbered(2)]);
    writer.write(&[numbered(3)]);
    assert_eq!(counters.untold.load(Ordering::Relaxed), 3);
    fs::remove_file(&place).unwrap();
    writer.write(&[numbered(4)]);
    assert_eq!(counters.untold.load(Ordering::Relaxed), 0);
    assert_eq!(counters.dropped.load(Ordering::Relaxed), 3);
    assert_eq!(acts(&place), ["audit.dropped", "turn.submit"]);
    assert_eq!(all(&place)[0].what["records"], 3);
}

#[test]
fn a_log_that_is_removed_while_it_is_written_is_begun_anew_and_the_gap_is_found() {
    let dir = temp();
    let place = dir.path().join("audit");
    let counters = Arc::new(LogCounters::default());
    let mut writer = AuditWriter::new(place.clone(), AuditOptions::default(), counters);
    writer.write(&[numbered(1), numbered(2)]);
    fs::rename(&place, dir.path().join("moved")).unwrap();
    writer.end();
    writer.write(&[numbered(3)]);
    writer.end();
    assert_eq!(acts(&place), ["audit.lost", "turn.submit"]);
    assert_eq!((all(&place)[0].seq, &all(&place)[0].what["last"]), (3, &json!(2)));
    assert!(problem(&place).contains("the records before 3 are missing"));
}

#[test]
fn a_log_goes_on_after_a_file_could_not_be_begun() {
    let dir = temp();
    let options = AuditOptions { max_total_bytes: 256 * 1024, ..AuditOptions::default() };
    let counters = Arc::new(LogCounters::default());
    let mut writer = AuditWriter::new(dir.path().to_owned(), options, counters.clone());
    let entries: Vec<AuditEntry> = (0..100).map(|_| large()).collect();
    writer.write(&entries);
    let next = dir.path().join("audit-101.jsonl");
    fs::create_dir(&next).unwrap();
    writer.write(&[numbered(1)]);
    assert_eq!(counters.dropped.load(Ordering::Relaxed), 1);
    fs::remove_dir(&next).unwrap();
    // A file without a record, as a failure after its creation leaves it.
    fs::write(&next, "").unwrap();
    writer.write(&[numbered(2)]);
    assert_eq!(acts(dir.path())[100..], ["audit.dropped", "turn.submit"]);
    verify(dir.path(), None).unwrap();
}

#[test]
fn only_regular_files_with_a_number_that_can_follow_are_the_log() {
    let dir = temp();
    write_numbers(dir.path(), 0..1);
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("audit-5.jsonl")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at("audit-6.jsonl")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("audit-7.jsonl"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    fs::write(at(&format!("audit-{}.jsonl", u64::MAX)), "x\n").unwrap();
    write_numbers(dir.path(), 1..2);
    assert_eq!((files(dir.path()).len(), all(dir.path()).len()), (1, 2));
    verify(dir.path(), None).unwrap();
}

#[test]
fn a_symlink_is_not_the_directory_of_a_log() {
    let dir = temp();
    let (target, place) = (dir.path().join("target"), dir.path().join("audit"));
    fs::create_dir(&target).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink(&target, &place).unwrap();
    assert_eq!(write(&place, AuditOptions::default(), vec![numbered(1)]).dropped, 1);
    assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}

#[test]
fn a_writer_that_is_busy_for_long_is_stuck() {
    let counters = LogCounters::default();
    let now = Instant::now();
    assert!(!counters.is_stuck(now));
    counters.set_busy(Some(now));
    assert!(!counters.is_stuck(now + Duration::from_secs(10)));
    assert!(counters.is_stuck(now + Duration::from_secs(11)));
}

#[test]
fn a_disabled_log_writes_nothing() {
    let dir = temp();
    let place = dir.path().join("audit");
    let options = AuditOptions { enabled: false, ..AuditOptions::default() };
    assert_eq!(write(&place, options, vec![numbered(1)]), AuditStanding::default());
    assert!(!place.exists());
}

#[test]
fn records_are_found_by_session_act_and_time() {
    let dir = temp();
    let mut other = entry("session.create", AuditDetails::default());
    (other.session, other.at_ms) = (Some("s2".to_owned()), 5);
    write(dir.path(), AuditOptions::default(), vec![other, numbered(1), numbered(2)]);
    let count = |filter: AuditFilter| {
        let found = find(dir.path(), &AuditFilter { limit: 10, ..filter }).unwrap();
        found.records.len()
    };
    let by_act = |did: &str| AuditFilter { did: Some(did.to_owned()), ..AuditFilter::default() };
    assert_eq!(count(AuditFilter::default()), 3);
    assert_eq!(count(AuditFilter { session: Some("s2".to_owned()), ..AuditFilter::default() }), 1);
    assert_eq!(count(AuditFilter { since_ms: Some(6), ..AuditFilter::default() }), 2);
    for (did, expected) in [("turn", 2), ("turn.submit", 2), ("tur", 0), ("session", 1)] {
        assert_eq!(count(by_act(did)), expected, "{did}");
    }
    let last = find(dir.path(), &AuditFilter { limit: 1, ..AuditFilter::default() }).unwrap();
    assert_eq!(last.records[0].what["turn"], 2);
}

#[test]
fn an_anchor_finds_a_cut_end_and_a_log_that_was_written_anew() {
    let dir = temp();
    write_numbers(dir.path(), 0..5);
    let head = verify(dir.path(), None).unwrap().head;
    let anchor = Anchor { seq: head.seq, hash: head.hash };
    verify(dir.path(), Some(&anchor)).unwrap();
    let path = files(dir.path()).remove(0);
    let content = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = content.split_inclusive('\n').collect();
    fs::write(&path, lines[..4].concat()).unwrap();
    verify(dir.path(), None).unwrap();
    let cut = verify(dir.path(), Some(&anchor)).unwrap_err();
    assert!(cut.to_string().contains("the end was cut off"), "{cut}");
    fs::remove_file(&path).unwrap();
    write_numbers(dir.path(), 1..6);
    verify(dir.path(), None).unwrap();
    let anew = verify(dir.path(), Some(&anchor)).unwrap_err();
    assert!(anew.to_string().contains("the log was written anew"), "{anew}");
}

/// A log of two files.
fn sample(dir: &Path) -> Vec<PathBuf> {
    let mut old = numbered(0);
    old.at_ms = 1;
    let mut first = vec![old];
    first.extend((1..4).map(numbered));
    write(dir, AuditOptions::default(), first);
    write_numbers(dir, 4..8);
    let found = files(dir);
    assert_eq!(found.len(), 2);
    verify(dir, None).unwrap();
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_change_of_any_byte_is_found(file in 0..2usize, at in any::<prop::sample::Index>(), to in 1..=255u8) {
        let dir = temp();
        let path = sample(dir.path()).remove(file);
        let mut content = fs::read(&path).unwrap();
        let at = at.index(content.len());
        content[at] ^= to;
        fs::write(&path, content).unwrap();
        prop_assert!(verify(dir.path(), None).is_err());
    }

    #[test]
    fn a_removed_swapped_or_repeated_line_is_found(
        act in 0..3,
        one in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
    ) {
        let dir = temp();
        let found = sample(dir.path());
        let text = fs::read_to_string(&found[0]).unwrap();
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        let (one, other) = (one.index(lines.len()), other.index(lines.len()));
        match act {
            0 => {
                lines.remove(one);
            }
            1 => lines.swap(one, other),
            _ => lines.insert(one, lines[other]),
        }
        fs::write(&found[0], lines.concat()).unwrap();
        prop_assert_eq!(verify(dir.path(), None).is_ok(), act == 1 && one == other);
    }
}
