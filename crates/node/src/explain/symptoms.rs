//! Reads one line of an error or of output: which refusal of the kernel it reports, about which path or host, and
//! whether the session's policy causes that refusal.

use std::path::Path;

use windlass_protocol::confinement::{Control, Isolation};
use windlass_protocol::policy::{Network, UnixSockets, normal_host};
use windlass_protocol::refusal::PolicyRefusal;

use super::{Confined, words};

/// What a line says about the policy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The line reports no refusal.
    Unrelated,
    /// The line reports an error that the policy does not cause.
    Ordinary,
    Refused(Box<PolicyRefusal>),
}

/// A refusal that concerns a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathRefusal {
    ReadOnly,
    Denied,
    Missing,
    Busy,
    /// A placeholder directory holds the name of a protected file.
    Directory,
    NoSpace,
}

/// The phrases of the refusals that concern a path, in lower case. A longer phrase stands before a shorter one.
const PATH_ERRORS: [(&str, PathRefusal); 10] = [
    ("read-only file system", PathRefusal::ReadOnly),
    ("erofs", PathRefusal::ReadOnly),
    ("permission denied", PathRefusal::Denied),
    ("eacces", PathRefusal::Denied),
    ("no such file or directory", PathRefusal::Missing),
    ("cannot connect to the docker daemon at ", PathRefusal::Missing),
    ("device or resource busy", PathRefusal::Busy),
    ("is a directory", PathRefusal::Directory),
    ("eisdir", PathRefusal::Directory),
    ("no space left on device", PathRefusal::NoSpace),
];

/// Phrases of programs that found no network, in lower case.
const NO_NETWORK: [&str; 20] = [
    "network is unreachable",
    "enetunreach",
    "temporary failure in name resolution",
    "temporary failure resolving",
    "name or service not known",
    "nodename nor servname",
    "eai_again",
    "enotfound",
    "could not resolve host",
    "couldn't resolve host",
    "couldn't resolve proxy",
    "unable to resolve host address",
    "nameresolutionerror",
    "failed to lookup address information",
    "failed to resolve",
    "getaddrinfo failed",
    "no address associated with hostname",
    "no such host",
    "network was disabled",
    "network is down",
];

/// What pip says when it has reached no index, and the hosts of the index that it uses without further options.
const NO_INDEX: &str = "(from versions: none)";
const LOCAL_INDEX: &str = "looking in links";
const INDEX_HOST: &str = "pypi.org";

/// What uv says when it may not use the network.
const UV_OFFLINE: &str = "packages were unavailable because the network was disabled";

/// What installers say of a Python that the system manages, and uv of a cache that it cannot write.
const INSTALLER_ERRORS: [&str; 3] = [
    "externally-managed-environment",
    "is externally managed",
    "/.cache/uv`: read-only file system",
];

/// The name of a project's virtual environment.
const VENV: &str = ".venv";

/// Text before a host in the messages of programs.
const BEFORE_HOST: [&str; 12] = [
    "could not resolve host: ",
    "couldn't resolve host: ",
    "could not resolve hostname ",
    "couldn't resolve host name ",
    "unable to resolve host address ",
    "failed to resolve ",
    "failure resolving ",
    "lookup ",
    "enotfound ",
    "eai_again ",
    "host=",
    "://",
];

/// Programs and calls that seccomp refuses, as they appear in messages.
const REFUSED_CALLS: [&str; 16] = [
    "bpf",
    "bpftool",
    "bwrap",
    "chroot",
    "gdb",
    "io_uring_setup",
    "keyctl",
    "mount",
    "nsenter",
    "perf_event_open",
    "pivot_root",
    "ptrace",
    "setns",
    "strace",
    "umount",
    "unshare",
];

/// Words of programs and of Python that show an attempt to write. At level `landlock` reading and writing fail with the
/// same error.
const WRITING: [&str; 19] = [
    "mkdir",
    "makedirs",
    "write_text",
    "write_bytes",
    "writefile",
    "touch",
    "unlink",
    "rmdir",
    "rename",
    "copyfile",
    "symlink",
    "cannot create",
    "can't create",
    "could not create",
    "failed to create",
    "unable to create",
    "cannot remove",
    "cannot move",
    "cannot write",
];

/// The modes in which Python opens a file for writing, without their letters for text and bytes.
const WRITING_MODES: [&str; 6] = ["w", "a", "x", "r+", "w+", "a+"];

/// What a symptom of the output is about, apart from paths and the network.
#[derive(Debug, Clone, Copy)]
struct LimitPhrase {
    phrases: &'static [&'static str],
    control: Control,
}

const LIMIT_PHRASES: [LimitPhrase; 4] = [
    LimitPhrase {
        phrases: &[
            "memoryerror",
            "arraymemoryerror",
            "cannot allocate memory",
            "cannot allocate vector",
            "std::bad_alloc",
        ],
        control: Control::Memory,
    },
    LimitPhrase {
        phrases: &["can't start new thread", "cannot fork", "fork: resource temporarily"],
        control: Control::ProcessCount,
    },
    LimitPhrase {
        phrases: &["file too large", "efbig", "file size limit exceeded", "sigxfsz"],
        control: Control::FileSize,
    },
    LimitPhrase { phrases: &["too many open files", "emfile"], control: Control::OpenFiles },
];

impl Confined<'_> {
    pub(super) fn judge(&self, line: &str) -> Judgement {
        // Changes no byte offset.
        let lower = line.to_ascii_lowercase();
        let judged = [
            self.judge_installer(&lower),
            self.judge_path(line, &lower),
            self.judge_network(line, &lower),
            self.judge_family(&lower),
            self.judge_limit(&lower),
            self.judge_call(&lower),
        ];
        let mut found = Judgement::Unrelated;
        for judgement in judged {
            match judgement {
                Judgement::Refused(_) => return judgement,
                Judgement::Ordinary => found = Judgement::Ordinary,
                Judgement::Unrelated => {}
            }
        }
        found
    }

    fn judge_path(&self, line: &str, lower: &str) -> Judgement {
        let found = PATH_ERRORS
            .iter()
            .find_map(|(phrase, error)| Some((position(lower, phrase)?, phrase.len(), *error)));
        let Some((at, length, error)) = found else { return Judgement::Unrelated };
        let paths = paths_beside(&line[..at], &line[at + length..]);
        let refused = paths.into_iter().find_map(|text| {
            let text = text.strip_prefix("unix://").unwrap_or(text);
            self.refused_path(&self.session.absolute(text)?, error, lower)
        });
        refused.map_or(Judgement::Ordinary, judged)
    }

    fn refused_path(&self, path: &Path, error: PathRefusal, line: &str) -> Option<PolicyRefusal> {
        let hidden = self.session.hidden_by(path).filter(|_| self.enforces(Control::Hidden));
        let protected =
            self.session.protected_by(path).filter(|_| self.enforces(Control::Protected));
        let at_home = self.session.protected_at_home(path);
        let at_home = at_home.filter(|_| hidden.is_none() && self.enforces(Control::Protected));
        match error {
            // Protected by name too, but packages get into a session by another way.
            PathRefusal::ReadOnly if self.read_only_venv(path).is_some() => {
                Some(words::read_only_venv(path, self.read_only_venv(path)?))
            }
            PathRefusal::ReadOnly | PathRefusal::Busy if at_home.is_some() => {
                Some(words::protected_at_home(path, &at_home?))
            }
            PathRefusal::ReadOnly | PathRefusal::Busy if protected.is_some() => {
                Some(words::protected(path, protected?))
            }
            PathRefusal::ReadOnly => hidden
                .map(|entry| words::hidden_write(path, entry))
                .or_else(|| self.unwritable(path)),
            PathRefusal::Denied => {
                let writes = self.shows_writing();
                match hidden {
                    Some(entry) if writes => Some(words::hidden_write(path, entry)),
                    Some(entry) => Some(words::hidden(path, entry)),
                    None => self.unreadable(path).or_else(|| {
                        // With a view, the kernel says that a read-only path is read-only.
                        let is_refusal = writes && self.isolation() == Isolation::Landlock;
                        is_refusal.then(|| self.unwritable(path)).flatten()
                    }),
                }
            }
            PathRefusal::Missing => hidden
                .map(|entry| words::hidden(path, entry))
                .or_else(|| self.unreadable(path))
                .or_else(|| self.foreign_socket(path)),
            PathRefusal::NoSpace => {
                let limit = self.policy().limits.tmp_bytes?;
                self.in_private_tmp(path).then(|| words::private_tmp(path, limit))
            }
            // A shell says this of the file that it redirects to.
            PathRefusal::Directory if self.shows_writing() || line.starts_with("bash: ") => {
                Some(words::protected(path, protected?))
            }
            PathRefusal::Directory | PathRefusal::Busy => None,
        }
    }

    fn unwritable(&self, path: &Path) -> Option<PolicyRefusal> {
        if !self.enforces(Control::Write) {
            None
        } else if self.session.in_read_only_workspace(path) {
            Some(words::read_only_workspace(path))
        } else {
            (!self.may_write(path)).then(|| words::unwritable(path))
        }
    }

    /// The project's virtual environment that holds a path, where sessions see it through a read-only mount.
    fn read_only_venv<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        let venv = path.ancestors().find(|above| above.ends_with(VENV))?;
        let of_project = self.session.workspace.starts_with(venv.parent()?)
            || venv.starts_with(self.session.workspace);
        let is_held = self.isolation() == Isolation::Full && self.enforces(Control::Write);
        (of_project && is_held).then_some(venv)
    }

    /// An installer that fails before it needs the network, in a session that may not install packages anyway.
    fn judge_installer(&self, lower: &str) -> Judgement {
        let is_closed = self.policy().network != Network::Open && self.enforces(Control::Write);
        match INSTALLER_ERRORS.iter().any(|error| lower.contains(error)) && is_closed {
            true => judged(words::no_packages(Control::Write, "install a package")),
            false => Judgement::Unrelated,
        }
    }

    fn unreadable(&self, path: &Path) -> Option<PolicyRefusal> {
        let refused = self.enforces(Control::Read) && !self.may_read(path);
        refused.then(|| words::unreadable(path))
    }

    /// A socket of the machine's services, whose directory is private in the session.
    fn foreign_socket(&self, path: &Path) -> Option<PolicyRefusal> {
        let of_service = ["/run", "/var/run"].iter().any(|root| path.starts_with(root))
            && path.extension().is_some_and(|extension| extension == "sock");
        let is_private = self.isolation() == Isolation::Full;
        (of_service && is_private).then(|| words::socket_of_machine(path))
    }

    fn judge_network(&self, line: &str, lower: &str) -> Judgement {
        let is_pip = lower.contains(NO_INDEX);
        let reports = is_pip || has_any(lower, &NO_NETWORK);
        // sudo names the session's own host.
        if !reports || lower.starts_with("sudo:") {
            return Judgement::Unrelated;
        }
        if is_pip && self.tail.to_ascii_lowercase().contains(LOCAL_INDEX) {
            return Judgement::Ordinary;
        }
        let host = match is_pip || lower.contains(UV_OFFLINE) {
            true => Some(INDEX_HOST.to_owned()),
            false => host_in(line).or_else(|| self.tail.lines().rev().find_map(host_in)),
        };
        self.unreachable(host.as_deref()).map_or(Judgement::Ordinary, judged)
    }

    fn unreachable(&self, host: Option<&str>) -> Option<PolicyRefusal> {
        if !self.enforces(Control::Network) {
            return None;
        }
        match &self.policy().network {
            Network::Open => None,
            Network::None if self.isolation() == Isolation::Landlock => {
                Some(words::no_network_but_open(host))
            }
            Network::None => Some(words::no_network(host)),
            Network::Hosts(rules) => {
                let names = |host: &str| {
                    let named = |rule: &windlass_protocol::policy::HostRule| {
                        rule.port.map_or(rule.matches(host, 443), |port| rule.matches(host, port))
                    };
                    rules.0.iter().any(named)
                };
                match host {
                    Some(host) if !names(host) => Some(words::unlisted_host(host)),
                    host => Some(words::past_the_proxy(host)),
                }
            }
        }
    }

    /// A socket family that seccomp refuses.
    fn judge_family(&self, lower: &str) -> Judgement {
        if !has_any(lower, &["address family not supported", "eafnosupport"]) {
            return Judgement::Unrelated;
        }
        let tail = self.tail.to_ascii_lowercase();
        let is_unix =
            ["af_unix", ".sock", "unix:", "unix socket"].iter().any(|word| tail.contains(word));
        let is_landlock = self.isolation() == Isolation::Landlock;
        let refusal = match is_unix {
            true if self.policy().unix_sockets == UnixSockets::None => Some(words::unix_sockets()),
            true if is_landlock => Some(words::unix_sockets_at_landlock()),
            true => None,
            false if is_landlock => {
                let host = self.tail.lines().rev().find_map(host_in);
                self.unreachable(host.as_deref())
            }
            false => None,
        };
        refusal.map_or(Judgement::Ordinary, judged)
    }

    fn judge_limit(&self, lower: &str) -> Judgement {
        let of_line = |limit: &&LimitPhrase| has_any(lower, limit.phrases);
        let Some(LimitPhrase { control, .. }) = LIMIT_PHRASES.iter().find(of_line) else {
            // Python names the call in the line of code above the error: `_fork_exec` or `os.fork`.
            let is_fork = lower.contains("resource temporarily unavailable")
                && (lower.contains("fork") || self.near_lines().any(|line| line.contains("fork")));
            return match is_fork {
                true => self.limit_of(Control::ProcessCount),
                false => Judgement::Unrelated,
            };
        };
        self.limit_of(*control)
    }

    fn limit_of(&self, control: Control) -> Judgement {
        if !self.enforces(control) {
            return Judgement::Ordinary;
        }
        words::limit_of(&self.policy().limits, control).map_or(Judgement::Ordinary, judged)
    }

    /// A system call that no session may make.
    fn judge_call(&self, lower: &str) -> Judgement {
        if lower.contains("no new privileges") && self.enforces(Control::Privileges) {
            return judged(words::privileges());
        }
        let refuses = has_any(lower, &["operation not permitted", "eperm"]);
        if !refuses || !self.enforces(Control::Syscalls) {
            return Judgement::Unrelated;
        }
        let is_part = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let call_in = |text: &str| {
            let has = |call: &&str| text.split(|char| !is_part(char)).any(|word| word == *call);
            REFUSED_CALLS.into_iter().find(has)
        };
        // Python names the call in the line of code above the error.
        let call = call_in(lower).or_else(|| self.near_lines().find_map(|line| call_in(&line)));
        call.map_or(Judgement::Ordinary, |call| judged(words::system_call(call)))
    }

    /// The last lines of the output, in lower case.
    fn near_lines(&self) -> impl Iterator<Item = String> {
        self.tail.lines().rev().take(NEAR_LINES).map(str::to_ascii_lowercase)
    }

    fn shows_writing(&self) -> bool {
        let tail = self.tail.to_ascii_lowercase();
        WRITING.iter().any(|word| tail.contains(word)) || tail.lines().any(opens_for_writing)
    }
}

/// Whether a line of code has a mode of writing as an argument: `open(name, "wb")`, `open(name, mode='a')`.
fn opens_for_writing(line: &str) -> bool {
    line.split(',').skip(1).any(|argument| {
        let argument = argument.trim_start();
        let argument = argument.strip_prefix("mode=").unwrap_or(argument);
        let quoted = ['"', '\''].into_iter().find_map(|quote| {
            argument.strip_prefix(quote)?.split_once(quote).map(|(inside, _)| inside)
        });
        quoted.is_some_and(|mode| WRITING_MODES.contains(&mode.replace(['b', 't'], "").as_str()))
    })
}

/// Lines at the end of a traceback that show the failed call.
const NEAR_LINES: usize = 4;

/// Where a phrase begins a word: `enotfound` is no part of `filenotfounderror`.
fn position(lower: &str, phrase: &str) -> Option<usize> {
    let begins = |at: &usize| !lower[..*at].ends_with(char::is_alphanumeric);
    lower.match_indices(phrase).map(|(at, _)| at).find(begins)
}

fn has_any(lower: &str, phrases: &[&str]) -> bool {
    phrases.iter().any(|phrase| position(lower, phrase).is_some())
}

fn judged(refusal: PolicyRefusal) -> Judgement {
    Judgement::Refused(Box::new(refusal))
}

/// The paths that a message names: quoted after the phrase, else quoted before it, else the word before it.
fn paths_beside<'t>(before: &'t str, after: &'t str) -> Vec<&'t str> {
    let quoted = |text: &'t str| {
        let mut found = Vec::new();
        let mut rest = text;
        while let Some((inside, after)) = next_quoted(rest).filter(|_| found.len() < 2) {
            found.push(inside);
            rest = after;
        }
        found
    };
    let mut found = quoted(after);
    if found.is_empty() {
        found = quoted(before);
    }
    if found.is_empty() {
        let is_edge = |char: char| matches!(char, ':' | '(' | '[' | ' ' | ',');
        let word = before.trim_end_matches(is_edge).rsplit([' ', '\t']).next();
        let follows = after.split_whitespace().next().filter(|word| word.contains('/'));
        found.extend(word.filter(|word| !word.is_empty()).into_iter().chain(follows));
    }
    found.into_iter().map(|text| text.trim_end_matches(['.', '?'])).collect()
}

/// The text in the first pair of quotes, and the text after it.
fn next_quoted(text: &str) -> Option<(&str, &str)> {
    let (at, open) =
        text.char_indices().find(|(_, char)| matches!(char, '\'' | '"' | '`' | '‘' | '“'))?;
    let close = match open {
        '‘' => '’',
        '“' => '”',
        // `name' is the older form.
        '`' if !text[at + 1..].contains('`') => '\'',
        same => same,
    };
    let inside = &text[at + open.len_utf8()..];
    let (inside, rest) = inside.split_once(close)?;
    Some((inside, rest))
}

/// The first host that a line names.
fn host_in(line: &str) -> Option<String> {
    let lower = line.to_ascii_lowercase();
    let after = BEFORE_HOST.iter().find_map(|before| {
        let at = lower.find(before)? + before.len();
        host_at(&lower[at..])
    });
    // `ping: example.org: Temporary failure in name resolution`
    after.or_else(|| {
        let phrase = NO_NETWORK.iter().find_map(|phrase| position(&lower, phrase))?;
        host_at(lower[..phrase].trim_end_matches([' ', ':']).rsplit(' ').next()?)
    })
}

fn host_at(text: &str) -> Option<String> {
    let text = text.trim_start_matches(['\'', '"', '`', ' ', '(']);
    let text = text.strip_prefix('‘').unwrap_or(text);
    let is_host = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    let end = text.find(|char| !is_host(char)).unwrap_or(text.len());
    let host = normal_host(text[..end].trim_end_matches('.'))?;
    let is_local = host == "localhost" || host.starts_with("127.");
    (host.contains('.') && !is_local).then_some(host)
}
