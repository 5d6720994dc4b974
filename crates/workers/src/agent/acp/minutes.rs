//! Finds out when gemini can resume a conversation: not in the minute in which it was begun.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Characters of a conversation's id in the name of its file.
const ID_CHARS: usize = 8;

const MINUTE: u64 = 60;

/// How long to wait until the conversation can be resumed. `directory` has a directory per project, each with `chats`.
pub fn until_next(directory: &Path, id: &str, now: SystemTime) -> Option<Duration> {
    let begun = begun_at(directory, id.get(..ID_CHARS)?)?;
    let seconds =
        |time: SystemTime| time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs());
    let (begun, now) = (seconds(begun)?, seconds(now)?);
    // One second more, for clocks that are read twice.
    let next = (begun / MINUTE + 1) * MINUTE + 1;
    (begun <= now && now < next).then(|| Duration::from_secs(next - now))
}

/// When the newest file of a conversation was made. The file is written once and then appended to, so the name has the
/// minute; the time of the last change is never before it.
fn begun_at(directory: &Path, id: &str) -> Option<SystemTime> {
    let projects = std::fs::read_dir(directory).ok()?.filter_map(Result::ok);
    let chats = projects.filter_map(|project| std::fs::read_dir(project.path().join("chats")).ok());
    let files = chats.flatten().filter_map(Result::ok);
    let of_id = files.filter(|file| {
        let name = file.file_name();
        name.to_str().is_some_and(|name| name.contains(&format!("-{id}.json")))
    });
    of_id.filter_map(|file| file.metadata().ok()?.modified().ok()).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_waits_for_the_next_minute() {
        let dir = tempfile::tempdir().unwrap();
        let chats = dir.path().join("ws/chats");
        std::fs::create_dir_all(&chats).unwrap();
        let file = chats.join("session-2026-11-18T11-08-0924ee50.jsonl");
        std::fs::write(&file, "").unwrap();
        let begun = file.metadata().unwrap().modified().unwrap();
        let id = "0924ee50-8825-43f8-8b96-5002ced4365c";
        let wait = until_next(dir.path(), id, begun).unwrap();
        assert!(wait <= Duration::from_secs(61), "{wait:?}");
        assert_eq!(until_next(dir.path(), id, begun + wait), None);
        assert_eq!(until_next(dir.path(), "00000000-0000", begun), None);
        assert_eq!(until_next(dir.path(), "short", begun), None);
    }
}
