//! The home directories of agents. An engine keeps its conversations in its home, so a session that resumes a
//! conversation gets the home of the session that began it.
//!
//! Layout below the state directory, made of names and symlinks that only the node writes:
//!
//! - `agents/homes/NAME`: a home. Its content belongs to the sessions that use it.
//! - `agents/users/SESSION -> NAME`: the session uses or used the home. A home stays as long as one of its sessions
//!   lives or has a journal.
//! - `agents/tokens/TOKEN -> NAME`: the home of a conversation.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use windlass_beneath::Directory;
use windlass_protocol::agent::ResumeToken;
use windlass_protocol::{ErrorCode, SessionId};

use crate::config::Config;
use crate::failure::Failure;
use crate::session_dirs;

const HOMES: &str = "homes";
const USERS: &str = "users";
const TOKENS: &str = "tokens";

/// Homes that are being removed.
const REMOVED: &str = "removed";

/// What the symlink of a token names that sessions with different homes have reported, or whose home is gone. No home
/// has this name.
const AMBIGUOUS: &str = "-";

/// Maximum number of tokens that are remembered although their homes are gone.
const ENDED_TOKENS_MAX: usize = 10_000;

/// Held while homes and their users change, so that no home is removed that a new session is about to get. Only threads
/// for blocking work wait for this lock.
static HOMES_CHANGE: Mutex<()> = Mutex::new(());

/// Held while one token changes. The thread that serves turns waits for this lock, so no holder does more than that.
static TOKEN_CHANGES: Mutex<()> = Mutex::new(());

fn hold(lock: &'static Mutex<()>) -> MutexGuard<'static, ()> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of homes of sessions with the same id.
const SAME_ID_MAX: usize = 1000;

/// The home of a new session: that of the conversation to resume, or a new one.
pub(crate) fn of_session(
    config: &Config,
    id: &SessionId,
    resume: Option<&ResumeToken>,
) -> Result<PathBuf, Failure> {
    let failed = |error: io::Error| Failure::while_making("cannot make the agent's home", &error);
    let _held = hold(&HOMES_CHANGE);
    let homes = open(config, HOMES).map_err(failed)?;
    let name = match resume {
        None => new_home(&homes, id).map_err(failed)?,
        Some(token) => home_of(config, token).ok_or_else(|| {
            let message = format!(
                "this node has no conversation {token}: it never ran here, its files were removed, or several \
                 sessions reported it"
            );
            Failure::new(ErrorCode::NotFound, message)
        })?,
    };
    let users = open(config, USERS).map_err(failed)?;
    // A symlink that is there belongs to a session that failed to start, or to an earlier one of this id.
    let _ = users.remove_file(id.as_str());
    users.symlink(Path::new(&name), id.as_str()).map_err(failed)?;
    Ok(config.agents_dir().join(HOMES).join(name))
}

/// Remembers where a conversation is. A token that sessions with different homes report can be resumed in none of
/// them: an engine chooses its ids, so one session could take the token of another.
pub(crate) fn remember(config: &Config, token: &ResumeToken, home: &Path) -> io::Result<()> {
    let Some(name) = home.file_name().map(Path::new) else { return Ok(()) };
    let tokens = open(config, TOKENS)?;
    let _held = hold(&TOKEN_CHANGES);
    match tokens.symlink(name, token.as_str()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    if tokens.read_link(token.as_str())? != name {
        tokens.remove_file(token.as_str())?;
        tokens.symlink(Path::new(AMBIGUOUS), token.as_str())?;
    }
    Ok(())
}

/// Removes homes and conversations of which no session is left. `is_known` says whether a session lives or has a
/// journal.
pub(crate) fn sweep(config: &Config, is_known: impl Fn(&SessionId) -> bool) -> io::Result<()> {
    let state = session_dirs::state(config)?;
    let agents = config.agents_dir();
    if state.look(session_dirs::inside(config, &agents)?)?.is_none() {
        return Ok(());
    }
    let removed = open(config, REMOVED)?;
    // What an earlier node has not finished.
    clear(&removed)?;
    set_aside(config, &removed, is_known)?;
    clear(&removed)
}

fn clear(directory: &Directory) -> io::Result<()> {
    for name in directory.names()? {
        directory.remove_tree(&name)?;
    }
    Ok(())
}

/// Moves the homes that nobody needs to where they are removed, and forgets their users and conversations. Quick, because
/// new sessions wait for it.
fn set_aside(
    config: &Config,
    removed: &Directory,
    is_known: impl Fn(&SessionId) -> bool,
) -> io::Result<()> {
    let _held = hold(&HOMES_CHANGE);
    let (homes, users) = (open(config, HOMES)?, open(config, USERS)?);
    let mut needed = HashSet::new();
    for session in users.names()? {
        let id = session.to_str().and_then(|name| SessionId::parse(name).ok());
        match id.filter(|id| is_known(id)) {
            Some(_) => drop(users.read_link(&session).map(|home| needed.insert(home))),
            None => users.remove_file(&session)?,
        }
    }
    for name in homes.names()?.iter().filter(|name| !needed.contains(Path::new(name))) {
        homes.rename(name, removed, name)?;
    }
    let tokens = open(config, TOKENS)?;
    let mut ended = 0;
    for token in tokens.names()? {
        let _held = hold(&TOKEN_CHANGES);
        let home = tokens.read_link(&token)?;
        if homes.look(&home)?.is_some() {
            continue;
        }
        // The token stays without a home: another session could report it, and a resume would run in that session's home.
        ended += 1;
        if ended > ENDED_TOKENS_MAX {
            tokens.remove_file(&token)?;
        } else if home != Path::new(AMBIGUOUS) {
            tokens.remove_file(&token)?;
            tokens.symlink(Path::new(AMBIGUOUS), &token)?;
        }
    }
    Ok(())
}

/// The name of a conversation's home, if the home is still there.
fn home_of(config: &Config, token: &ResumeToken) -> Option<String> {
    let name = open(config, TOKENS).ok()?.read_link(token.as_str()).ok()?;
    let is_there = open(config, HOMES).ok()?.look(&name).ok()?.is_some();
    name.into_os_string().into_string().ok().filter(|_| is_there)
}

fn new_home(homes: &Directory, id: &SessionId) -> io::Result<String> {
    let names = (1..SAME_ID_MAX).map(|number| match number {
        1 => id.to_string(),
        _ => format!("{id}~{number}"),
    });
    for name in names {
        match homes.create_directory(OsStr::new(&name), 0o700) {
            Ok(_) => return Ok(name),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("there are too many homes of earlier sessions {id}")))
}

fn open(config: &Config, name: &str) -> io::Result<Directory> {
    let path = config.agents_dir().join(name);
    session_dirs::state(config)?.make_directory(session_dirs::inside(config, &path)?, 0o700)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_found_by_its_conversation_and_stays_as_long_as_a_session_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::new(dir.path().join("run"), dir.path().join("state"), PathBuf::new());
        std::fs::create_dir(&config.state_dir).unwrap();
        let id = |name: &str| SessionId::parse(name).unwrap();
        let token = ResumeToken::new("codex", "x").unwrap();
        sweep(&config, |_| false).unwrap();
        assert!(of_session(&config, &id("a"), Some(&token)).is_err());
        let home = of_session(&config, &id("a"), None).unwrap();
        std::fs::write(home.join("kept"), "").unwrap();
        remember(&config, &token, &home).unwrap();
        let other = of_session(&config, &id("o"), None).unwrap();
        let taken = ResumeToken::new("codex", "taken").unwrap();
        remember(&config, &taken, &home).unwrap();
        remember(&config, &token, &home).unwrap();
        assert_eq!(of_session(&config, &id("b"), Some(&taken)).unwrap(), home);
        remember(&config, &taken, &other).unwrap();
        assert!(of_session(&config, &id("x"), Some(&taken)).is_err(), "two homes");
        assert_eq!(of_session(&config, &id("b"), Some(&token)).unwrap(), home);
        assert_ne!(of_session(&config, &id("a"), None).unwrap(), home, "an id that is used again");

        sweep(&config, |session| *session == id("b")).unwrap();
        assert!(home.join("kept").exists() && !other.exists());
        assert_eq!(of_session(&config, &id("c"), Some(&token)).unwrap(), home);
        sweep(&config, |_| false).unwrap();
        assert!(!home.exists() && of_session(&config, &id("d"), Some(&token)).is_err());
        // Another session that reports the token does not get it.
        let late = of_session(&config, &id("late"), None).unwrap();
        remember(&config, &token, &late).unwrap();
        assert!(of_session(&config, &id("e"), Some(&token)).is_err());
    }
}
