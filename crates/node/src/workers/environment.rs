//! The environment of a worker: an allow-list of the node's own variables, then what the client
//! adds. Nothing else of the node's is visible inside.

use std::collections::BTreeMap;

/// Variables of the node's that a worker gets: who and where the user is, and how text looks.
const INHERITED: [&str; 10] =
    ["HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER"];

/// What programs must know in a session without a terminal.
const FIXED: [(&str, &str); 3] = [("TERM", "dumb"), ("PAGER", "cat"), ("GIT_PAGER", "cat")];

/// A worker's environment, with `added` last.
pub(super) fn of_worker(added: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut env: BTreeMap<String, String> = INHERITED
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
        .collect();
    env.extend(FIXED.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    env.extend(added.iter().map(|(name, value)| (name.clone(), value.clone())));
    env
}
