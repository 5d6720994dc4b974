//! `windlass audit`: prints records of the node's audit log, and checks that none was removed or changed. Reads the files
//! itself, so that the check does not trust a running node.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use windlass_audit::{Anchor, AuditFilter, AuditRecord, find, is_control, verify};
use windlass_client::{ClientError, Dirs};
use windlass_protocol::SessionId;

use crate::commands::status::since;
use crate::counted::counted;
use crate::terminal::{Terminal, Tone, table};
use crate::{duration, node_access};

/// Letters of a hash.
const HASH_LETTERS: usize = 64;

/// Show who did what on this node, or check that the log is whole
///
/// Prints the records of the audit log of the node of this machine, the newest last. Needs no node. Refuses to run while
/// WINDLASS_URL is set.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  windlass audit                              the last records
  windlass audit --session SESSION            what happened to one session
  windlass audit --did session --since 2h     sessions that were created, closed, ... in the last two hours
  windlass audit --json --limit 1000          the same for programs, one JSON object per line
  windlass audit --verify                     find removed, changed and reordered records
  windlass audit --head                       print SEQ:HASH of the last record, to note it elsewhere
  windlass audit --verify --anchor SEQ:HASH   also find a log that was cut at its end, or written anew")]
pub struct Args {
    /// Show only records of this session
    #[arg(long, value_name = "SESSION")]
    session: Option<SessionId>,
    /// Show only these acts: `turn.submit`, or `turn` for all acts on turns
    #[arg(long, value_name = "ACT")]
    did: Option<String>,
    /// Show only records of this last time, for example 2h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    since: Option<Duration>,
    /// Show at most this many records
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
    /// Check the whole log; exits with 1 if it has a fault
    #[arg(long, conflicts_with_all = ["session", "did", "since", "limit"])]
    verify: bool,
    /// The number and the hash of a record that the log must have, as `--head` prints them
    #[arg(long, value_name = "SEQ:HASH", requires = "verify", value_parser = anchor)]
    anchor: Option<Anchor>,
    /// Check the log, and print the number and the hash of its last record
    #[arg(long, conflicts_with_all = ["session", "did", "since", "limit", "verify"])]
    head: bool,
}

pub fn run(args: Args, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    node_access::require_local("windlass audit")?;
    let dir = Dirs::from_env().map_err(ClientError::from)?.state.join(windlass_audit::DIRECTORY);
    if args.verify || args.head {
        return check(&args, &dir, terminal);
    }
    let since_ms = args.since.map(|ago| duration::millis(now().saturating_sub(ago)));
    let session = args.session.map(|id| id.to_string());
    let filter = AuditFilter { session, did: args.did, since_ms, limit: args.limit };
    let found = find(&dir, &filter)?;
    if args.json {
        for record in &found.records {
            terminal.say(&serde_json::to_string(record)?)?;
        }
    } else {
        let rows: Vec<_> = found.records.iter().map(row).collect();
        let lines = table(["SEQ", "TIME", "AGE", "WHO", "ACT", "SESSION", "DETAILS"], &rows);
        for (at, line) in lines.iter().enumerate() {
            let tone = if at == 0 { Tone::Strong } else { Tone::Plain };
            terminal.say(&terminal.tone(tone, line))?;
        }
    }
    if found.damaged_lines > 0 {
        let lines = counted(found.damaged_lines, "line", "lines");
        terminal.note(&format!("{lines} of the log are damaged; run: windlass audit --verify"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks the log, and says what is wrong or what its head is.
fn check(args: &Args, dir: &Path, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let chain = match verify(dir, args.anchor.as_ref()) {
        Ok(chain) => chain,
        Err(problem) => {
            let problem = problem.to_string();
            if args.json {
                terminal.say(&json!({"ok": false, "problem": problem}).to_string())?;
            }
            let remedy =
                "keep a copy of the directory; docs/audit-log.md says what each fault means";
            terminal.complain(&format!("{}: {problem}", dir.display()), "", remedy)?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let (seq, hash) = (chain.head.seq, &chain.head.hash);
    if args.json {
        terminal.say(&json!({"ok": true, "chain": chain}).to_string())?;
    } else if args.head {
        terminal.say(&format!("{seq}:{hash}"))?;
    } else {
        let records = counted(chain.records, "record", "records");
        let files = counted(chain.files, "file", "files");
        terminal.say(&format!(
            "the log is whole: {records} in {files}, from {} to {seq}",
            chain.first
        ))?;
        terminal.say(&format!("head {seq}:{hash}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn row(record: &AuditRecord) -> [String; 7] {
    let AuditRecord { seq, at_ms, who, did, session, what, .. } = record;
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(*at_ms)).filter(|_| *at_ms <= LAST_MS);
    let time = time.map(|time| humantime::format_rfc3339_seconds(time).to_string());
    let details = if what.is_empty() { String::new() } else { json!(what).to_string() };
    [
        seq.to_string(),
        time.unwrap_or_else(|| "?".to_owned()),
        duration::show(since((*at_ms).min(LAST_MS))),
        plain(&actor(who)),
        plain(&unambiguous(did)),
        session.as_deref().map(unambiguous).map(|id| plain(&id)).unwrap_or_default(),
        plain(&details),
    ]
}

/// The last moment that has a date with a year of four digits.
const LAST_MS: u64 = 253_402_300_799_000;

/// Who did it, in short: the door, and what identifies the client there.
fn actor(who: &Value) -> String {
    let text = |name: &str| who.get(name).and_then(Value::as_str);
    let number = |name: &str| who.get(name).and_then(Value::as_u64);
    let mut parts = vec![unambiguous(text("door").unwrap_or("?"))];
    parts.extend(number("uid").map(|uid| format!("uid={uid}")));
    parts.extend(number("pid").map(|pid| format!("pid={pid}")));
    for name in ["address", "token", "scope", "tenant", "node", "client"] {
        parts.extend(text(name).map(|value| format!("{name}={}", unambiguous(value))));
    }
    parts.join(" ")
}

/// A text that cannot be taken for several: one with spaces, quotes or control characters is a JSON string.
fn unambiguous(text: &str) -> String {
    let is_odd = |letter: char| letter.is_whitespace() || letter == '"' || is_control(letter);
    if text.contains(is_odd) { json!(text).to_string() } else { text.to_owned() }
}

/// A text that cannot change what the terminal shows elsewhere: someone may have written a line with a valid hash.
fn plain(text: &str) -> String {
    text.replace(is_control, "?")
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn anchor(text: &str) -> Result<Anchor, String> {
    let malformed = || format!("an anchor is SEQ:HASH, with {HASH_LETTERS} hexadecimal digits");
    let (seq, hash) = text.trim().split_once(':').ok_or_else(malformed)?;
    let seq = seq.parse().map_err(|_| malformed())?;
    let is_hash = hash.len() == HASH_LETTERS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hash {
        return Err(malformed());
    }
    Ok(Anchor { seq, hash: hash.to_ascii_lowercase() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_anchor_is_read_as_the_head_is_printed() {
        let hash = "0a".repeat(32);
        let read = anchor(&format!("7:{hash}\n")).unwrap();
        assert_eq!((read.seq, read.hash), (7, hash.clone()));
        for text in ["", "7", "7:", "x:0a", &format!(":{hash}"), &format!("7:{hash}0")] {
            assert!(anchor(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_record_is_one_row_without_control_characters() {
        let record = AuditRecord {
            v: 1,
            seq: 3,
            at_ms: 1000,
            who: json!({"door": "tcp", "token": "ci", "client": "x\u{1b}[2J uid=0\u{202e}"}),
            did: "session.create".to_owned(),
            session: Some("s1".to_owned()),
            what: [("kind".to_owned(), json!("python"))].into_iter().collect(),
            prev: String::new(),
            hash: String::new(),
        };
        let row = row(&record);
        assert_eq!(row[1], "1970-01-01T00:00:01Z");
        assert_eq!(row[3], r#"tcp token=ci client="x\u001b[2J uid=0?""#);
        assert_eq!(row[6], r#"{"kind":"python"}"#);
        let far = AuditRecord { at_ms: u64::MAX, ..record };
        assert_eq!(super::row(&far)[1], "?");
    }
}
