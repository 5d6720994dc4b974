//! Words: the files of the repository contain no paths of one machine, no hosts except a few public ones, and
//! no words about how a change was made.

use super::finding::Finding;
use crate::workspace::SourceFile;

/// Prefixes of paths that exist only on one machine.
const MACHINE_PATHS: &[&str] = &["/root/", "/work/", "/home/", "/Users/"];

/// Hosts that a link may name. Registries and mirrors are settings of a machine and do not belong here.
const HOSTS: &[&str] = &[
    "127.0.0.1",
    "apache.org",
    "api.openai.com",
    "docs.rs",
    "github.com",
    "json-schema.org",
    "keepachangelog.com",
    "localhost",
    "nexte.st",
    "semver.org",
    "spdx.org",
    "sqlite.org",
    "static.modelcontextprotocol.io",
    "windlass",
    "www.apache.org",
    // Names of XML namespaces.
    "www.w3.org",
];

/// Words about how a change was made. They do not belong in files.
const MAKING: &[&str] = &[
    "as an ai",
    "as discussed",
    "as instructed",
    "as requested",
    "co-authored-by",
    "generated with",
    "in the brief",
    "the brief says",
    "the issue says",
    "the task says",
];

pub fn check(sources: &[SourceFile]) -> Vec<Finding> {
    // This file contains the words that it looks for.
    let others = sources.iter().filter(|source| !source.path.ends_with("tidy/words.rs"));
    others.flat_map(check_file).collect()
}

fn check_file(source: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in source.lines() {
        for path in MACHINE_PATHS.iter().filter(|path| starts_a_path(line, path)) {
            let what = format!("contains {path}, a path of one machine");
            findings.push(Finding::error(&source.path, number, what, "use a relative path"));
        }
        for host in hosts_in(line).filter(|host| !HOSTS.contains(host) && !is_reserved(host)) {
            let what = format!("links to the host {host:?}");
            let remedy = "remove it, or add it to HOSTS in xtask/src/tidy/words.rs if it is a \
                          public host that readers need";
            findings.push(Finding::error(&source.path, number, what, remedy));
        }
        let lower = line.to_lowercase();
        for word in MAKING.iter().filter(|words| has_words(&lower, words)) {
            let what = format!("contains {word:?}");
            let remedy = "explain the code, not how the change was made";
            findings.push(Finding::error(&source.path, number, what, remedy));
        }
    }
    findings
}

/// Whether a host is reserved for tests and examples (RFC 2606).
fn is_reserved(host: &str) -> bool {
    ["test", "example", "invalid", "example.com", "example.org"].iter().any(|end| {
        host.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// Whether the line contains the words, and not only as the end of a longer word.
fn has_words(line: &str, words: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric();
    line.match_indices(words).any(|(at, _)| !line[..at].ends_with(is_letter))
}

/// Whether the line has an absolute path that starts with `path`. `/proc/self/root/` does not start with
/// `/root/`.
fn starts_a_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}*$/>~".contains(c))
    })
}

/// The hosts of the URLs in the line, without user and port.
fn hosts_in(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("://").filter_map(|(at, mark)| {
        if !(line[..at].ends_with("http") || line[..at].ends_with("https")) {
            return None;
        }
        let rest = &line[at + mark.len()..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-._@".contains(c)));
        let host = &rest[..end.unwrap_or(rest.len())];
        let host = host.rsplit('@').next().unwrap_or(host).trim_end_matches('.');
        (!host.is_empty()).then_some(host)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> usize {
        check(&[SourceFile { path: "a.md".to_owned(), text: text.to_owned() }]).len()
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        assert_eq!(findings("see /root/notes"), 1);
        assert_eq!(findings("\"/home/me/x\""), 1);
        assert_eq!(findings("by `/proc/self/root/etc` or https://github.com/work/x"), 0);
    }

    #[test]
    fn a_host_is_named_only_if_readers_need_it() {
        assert_eq!(findings("https://github.com/a and http://localhost:80/v1"), 0);
        assert_eq!(findings("http://me@mirror.corp:8080/simple"), 1);
        assert_eq!(findings("https://api.example.com/ and https://index.test:81/"), 0);
        assert_eq!(findings("http://{host}/ and http://"), 0);
    }

    #[test]
    fn talk_of_the_making_is_found() {
        assert_eq!(findings("Done as requested."), 1);
        assert_eq!(findings("A client requested it; it was requested."), 0);
    }
}
