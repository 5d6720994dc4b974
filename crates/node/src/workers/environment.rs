//! The environment variables of a worker: an allow-list of the node's variables, then those of the client.
//! The worker sees no other variable of the node.

use std::collections::BTreeMap;

/// The node's variables that a worker gets: about the user, the directories and the language.
const INHERITED: [&str; 10] =
    ["HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"];

/// For programs in a session without a terminal.
const FIXED: [(&str, &str); 3] = [("TERM", "dumb"), ("PAGER", "cat"), ("GIT_PAGER", "cat")];

/// A worker's environment. `added` overrides the others.
pub(super) fn of_worker(added: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = INHERITED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
        .collect();
    env.extend(FIXED.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    env.extend(added.iter().map(|(name, value)| (name.clone(), value.clone())));
    env
}

/// The node's PATH.
pub(super) fn path() -> Option<String> {
    std::env::var("PATH").ok()
}
