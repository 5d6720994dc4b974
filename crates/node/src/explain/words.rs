//! The sentences about refusals: what the policy refused, and the option and the field that allow it.

use std::path::Path;

use windlass_egress::RefusalReason;
use windlass_protocol::api::EgressDecision;
use windlass_protocol::confinement::Control;
use windlass_protocol::policy::{Limit, Limits};
use windlass_protocol::refusal::{PolicyRefusal, TRIED_BYTES_MAX};
use windlass_protocol::text::bounded;

/// The hosts of Python's package index, and the options with which a session gets packages from it.
const INDEX_HOSTS: [&str; 2] = ["pypi.org", "files.pythonhosted.org"];
const PACKAGES_OPTION: &str = "--allow-packages";
const PACKAGES_FIELD: &str = "allow_packages";

/// The option for what has no option of its own.
const POLICY_FILE: &str = "--policy-file FILE";

/// Maximum bytes of a path in an option. A longer one is shortened to a placeholder.
const ARGUMENT_BYTES_MAX: usize = 200;

/// The least memory that a sentence proposes: with less, no interpreter works.
const MEMORY_OPTION_MIN: u64 = 64 << 20;

const HOSTS_FIELD: &str = "policy.network.hosts";
const SHOWN_FIELD: &str = "policy.shown";

/// A refusal whose option is a part of its sentence.
fn refusal(control: Control, tried: &str, message: String) -> PolicyRefusal {
    let tried = bounded(&visible(tried), TRIED_BYTES_MAX);
    PolicyRefusal { control, tried, message, option: None, field: None }
}

/// The refusal with the option that allows what was tried.
fn allowed_by(refusal: PolicyRefusal, option: &str, field: &str) -> PolicyRefusal {
    PolicyRefusal { option: Some(option.to_owned()), field: Some(field.to_owned()), ..refusal }
}

/// The text without characters that change the direction of text or that nobody can see.
fn visible(text: &str) -> String {
    let is_unseen = |char: char| {
        matches!(char, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    let shown = |char: char| if is_unseen(char) { char::REPLACEMENT_CHARACTER } else { char };
    text.chars().map(shown).collect()
}

/// A path for a sentence.
fn shown(path: &Path) -> String {
    bounded(&visible(&path.display().to_string()), ARGUMENT_BYTES_MAX)
}

/// A path as an argument for a shell, or `placeholder` for a path that a shell could read as something else.
fn argument(path: &str, placeholder: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "/._-+@%=:,~".contains(char);
    let is_quotable =
        |char: char| is_plain(char) || char == ' ' || (!char.is_ascii() && char.is_alphanumeric());
    if path.len() > ARGUMENT_BYTES_MAX || !path.chars().all(is_quotable) {
        placeholder.to_owned()
    } else if path.chars().all(is_plain) {
        path.to_owned()
    } else {
        format!("'{path}'")
    }
}

fn connecting(host: Option<&str>) -> String {
    host.map_or_else(|| "use the network".to_owned(), |host| format!("connect to {host}"))
}

/// The option that allows a host.
fn host_option(host: Option<&str>) -> String {
    match host {
        Some(host) => format!("--allow-host {host}"),
        None => "--allow-host HOST".to_owned(),
    }
}

fn is_index(host: Option<&str>) -> bool {
    host.is_some_and(|host| INDEX_HOSTS.contains(&host))
}

/// A session that cannot install packages from the index.
pub(super) fn no_packages(control: Control, tried: &str) -> PolicyRefusal {
    let message = format!(
        "this session may not install packages; name them with `--with PACKAGES`, or let its code install them with \
         `{PACKAGES_OPTION}`"
    );
    allowed_by(refusal(control, tried, message), PACKAGES_OPTION, PACKAGES_FIELD)
}

/// The virtual environment of a project, which sessions only read.
pub(super) fn read_only_venv(path: &Path, venv: &Path) -> PolicyRefusal {
    let message = format!(
        "{} is read-only in a session; name packages with `--with PACKAGES`, or let its code install them into an \
         environment of its own with `{PACKAGES_OPTION}`",
        shown(venv)
    );
    let found = refusal(Control::Write, &format!("write {}", shown(path)), message);
    allowed_by(found, PACKAGES_OPTION, PACKAGES_FIELD)
}

pub(super) fn no_network(host: Option<&str>) -> PolicyRefusal {
    if is_index(host) {
        return no_packages(Control::Network, &connecting(host));
    }
    let option = host_option(host);
    let message = format!("this session has no network; allow a host with `{option}`");
    allowed_by(refusal(Control::Network, &connecting(host), message), &option, HOSTS_FIELD)
}

/// The level `landlock` cannot enforce a list of hosts.
pub(super) fn no_network_but_open(host: Option<&str>) -> PolicyRefusal {
    if is_index(host) {
        let message = "this session may not install packages, and its isolation level landlock has no lists of hosts; \
             name packages with `--with PACKAGES`";
        let found = refusal(Control::Network, &connecting(host), message.to_owned());
        return allowed_by(found, "--with PACKAGES", "environment");
    }
    let message = "this session has no network, and its isolation level landlock has no lists of hosts; allow every \
         host with `--policy open`, or use a machine with the level full"
        .to_owned();
    let found = refusal(Control::Network, &connecting(host), message);
    allowed_by(found, "--policy open", "policy.network")
}

pub(super) fn unlisted_host(host: &str) -> PolicyRefusal {
    if is_index(Some(host)) {
        return no_packages(Control::Network, &connecting(Some(host)));
    }
    let option = host_option(Some(host));
    let message =
        format!("{host} is not in this session's list of hosts; allow it with `{option}`");
    allowed_by(refusal(Control::Network, &connecting(Some(host)), message), &option, HOSTS_FIELD)
}

/// A program that does not use the proxy.
pub(super) fn past_the_proxy(host: Option<&str>) -> PolicyRefusal {
    let message = "this session reaches its hosts only through the proxy of the variables http_proxy and https_proxy; \
         the program did not use it, and only `--policy open` allows other connections"
        .to_owned();
    let found = refusal(Control::Network, &connecting(host), message);
    allowed_by(found, "--policy open", "policy.network")
}

/// A connection that the egress proxy refused.
pub(super) fn refused_host(decision: &EgressDecision) -> PolicyRefusal {
    let EgressDecision { host, port, reason, .. } = decision;
    let is = |why: RefusalReason| *reason == why.to_string();
    let host = bounded(&visible(host), ARGUMENT_BYTES_MAX);
    if is(RefusalReason::NotNamed) || is(RefusalReason::BareAddress) {
        return unlisted_host(&host);
    }
    if is(RefusalReason::PrivateAddress) {
        let option = format!("--allow-host {host}=ADDRESS");
        let message = format!("{host} resolves to a private address; allow it with `{option}`");
        let found = refusal(Control::Network, &connecting(Some(&host)), message);
        return allowed_by(found, &option, HOSTS_FIELD);
    }
    let reason = bounded(&visible(reason), TRIED_BYTES_MAX);
    let (tried, subject) = match host.as_str() {
        "*" => (connecting(None), "a connection".to_owned()),
        host => (format!("connect to {host}:{port}"), format!("{host}:{port}")),
    };
    refusal(Control::Network, &tried, format!("the egress proxy refused {subject}: {reason}"))
}

pub(super) fn unwritable(path: &Path) -> PolicyRefusal {
    let directory = path.parent().filter(|parent| parent.parent().is_some()).unwrap_or(path);
    let option = format!("--writable {}", argument(&directory.to_string_lossy(), "DIR"));
    let shown = shown(path);
    let message = format!("this session may not write {shown}; allow it with `{option}`");
    allowed_by(
        refusal(Control::Write, &format!("write {shown}"), message),
        &option,
        "policy.writable",
    )
}

pub(super) fn read_only_workspace(path: &Path) -> PolicyRefusal {
    let message =
        "this session may only read its workspace; allow writing with `--policy workspace`";
    let found = refusal(Control::Write, &format!("write {}", shown(path)), message.to_owned());
    allowed_by(found, "--policy workspace", "policy.preset")
}

pub(super) fn unreadable(path: &Path) -> PolicyRefusal {
    let shown = shown(path);
    let message = format!(
        "this session may not read {shown}; add a path to `readable` in the file of `{POLICY_FILE}`"
    );
    allowed_by(
        refusal(Control::Read, &format!("read {shown}"), message),
        POLICY_FILE,
        "policy.readable",
    )
}

pub(super) fn hidden(path: &Path, entry: &str) -> PolicyRefusal {
    let option = format!("--show {}", argument(entry, "PATH"));
    let message =
        format!("the policy of this session hides {entry}; allow reading it with `{option}`");
    allowed_by(
        refusal(Control::Hidden, &format!("read {}", shown(path)), message),
        &option,
        SHOWN_FIELD,
    )
}

pub(super) fn hidden_write(path: &Path, entry: &str) -> PolicyRefusal {
    let argument = argument(entry, "PATH");
    let option = format!("--show {argument} --writable {argument}");
    let message =
        format!("the policy of this session hides {entry}; allow writing there with `{option}`");
    let found = refusal(Control::Hidden, &format!("write {}", shown(path)), message);
    allowed_by(found, &option, SHOWN_FIELD)
}

pub(super) fn protected(path: &Path, name: &str) -> PolicyRefusal {
    let option = format!("--show {}", argument(name, "PATH"));
    let message = format!(
        "the policy of this session protects {name}, which other programs trust; allow changing it with `{option}`"
    );
    let found = refusal(Control::Protected, &format!("write {}", shown(path)), message);
    allowed_by(found, &option, SHOWN_FIELD)
}

/// A path in a home's directory of programs or startup files, which no list of names in a policy frees.
pub(super) fn protected_at_home(path: &Path, directory: &Path) -> PolicyRefusal {
    let nearest = path.parent().filter(|parent| parent.starts_with(directory)).unwrap_or(path);
    let option = format!("--writable {}", argument(&nearest.to_string_lossy(), "DIR"));
    let message = format!(
        "the policy of this session protects {}, which other programs trust; allow changing it with `{option}`",
        shown(directory)
    );
    let found = refusal(Control::Protected, &format!("write {}", shown(path)), message);
    allowed_by(found, &option, "policy.writable")
}

pub(super) fn private_tmp(path: &Path, bytes: u64) -> PolicyRefusal {
    let message = format!(
        "the private /tmp of this session is full at {}; raise `limits.tmp_bytes` in the file of `{POLICY_FILE}`",
        size(bytes)
    );
    let found = refusal(Control::Disk, &format!("write {}", shown(path)), message);
    allowed_by(found, POLICY_FILE, "policy.limits.tmp_bytes")
}

/// A unix socket of the machine in a directory that is private in the session.
pub(super) fn socket_of_machine(path: &Path) -> PolicyRefusal {
    let directory = path.parent().unwrap_or(path).to_string_lossy();
    let option = format!("--writable {}", argument(&directory, "DIR"));
    let shown = shown(path);
    let message = format!(
        "this session reaches no unix socket of the machine; allow the sockets beside {shown} with `{option}`"
    );
    let found = refusal(Control::Sockets, &format!("connect to {shown}"), message);
    allowed_by(found, &option, "policy.writable")
}

pub(super) fn unix_sockets() -> PolicyRefusal {
    let message =
        "this session may make no unix socket; allow its own ones with `--unix-sockets local`";
    let found = refusal(Control::Sockets, "make a unix socket", message.to_owned());
    allowed_by(found, "--unix-sockets local", "policy.unix_sockets")
}

pub(super) fn unix_sockets_at_landlock() -> PolicyRefusal {
    let message = "this session runs at the isolation level landlock, which allows no unix socket; use a machine that \
         supports `--isolation full`";
    let found = refusal(Control::Sockets, "make a unix socket", message.to_owned());
    allowed_by(found, "--isolation full", "policy.isolation")
}

pub(super) fn system_call(name: &str) -> PolicyRefusal {
    unconfined_only(Control::Syscalls, name, &format!("no confined session may use {name}"))
}

pub(super) fn privileges() -> PolicyRefusal {
    unconfined_only(
        Control::Privileges,
        "gain privileges",
        "no confined session may gain privileges",
    )
}

fn unconfined_only(control: Control, tried: &str, what: &str) -> PolicyRefusal {
    let message = format!("{what}; only a session without confinement may: `--isolation none`");
    allowed_by(refusal(control, tried, message), "--isolation none", "policy.isolation")
}

/// A limit that Windlass reported.
pub(super) fn limit(limits: &Limits, limit: Limit) -> Option<PolicyRefusal> {
    match limit {
        Limit::Memory => limit_of(limits, Control::Memory),
        Limit::Processes => limit_of(limits, Control::ProcessCount),
        Limit::Disk => limit_of(limits, Control::Disk),
        Limit::WallTime => limit_of(limits, Control::WallTime),
    }
}

/// A limit of the policy that the session reached. None if the policy does not set it.
pub(super) fn limit_of(limits: &Limits, control: Control) -> Option<PolicyRefusal> {
    let (tried, what, option, field) = match control {
        Control::Memory => {
            let bytes = limits.memory_bytes?;
            let more = bytes.saturating_mul(2).max(MEMORY_OPTION_MIN);
            let more = format!("--memory {}", size_option(more));
            (
                "use more memory",
                format!("its memory limit of {}", size(bytes)),
                more,
                "memory_bytes",
            )
        }
        Control::ProcessCount => {
            let most = limits.processes?;
            let more = format!("--processes {}", most.saturating_mul(2));
            ("start more processes", format!("its limit of {most} processes"), more, "processes")
        }
        Control::FileSize => {
            let what = format!("its limit of {} for one file", size(limits.file_bytes?));
            ("write a larger file", what, POLICY_FILE.to_owned(), "file_bytes")
        }
        Control::OpenFiles => {
            let what = format!("its limit of {} open files", limits.open_files?);
            ("open more files", what, POLICY_FILE.to_owned(), "open_files")
        }
        Control::Disk => {
            let what = format!("the limit of {} for its workspace", size(limits.disk_bytes?));
            ("write more into the workspace", what, POLICY_FILE.to_owned(), "disk_bytes")
        }
        Control::WallTime => {
            let what = format!("its limit of {} s of life", limits.wall_s?);
            ("run longer", what, POLICY_FILE.to_owned(), "wall_s")
        }
        _ => return None,
    };
    let message = match option.as_str() {
        POLICY_FILE => format!(
            "this session reached {what}; raise `limits.{field}` in the file of `{POLICY_FILE}`"
        ),
        option => format!("this session reached {what}; raise it with `{option}`"),
    };
    let field = format!("policy.limits.{field}");
    Some(allowed_by(refusal(control, tried, message), &option, &field))
}

const UNITS: [(u64, &str); 3] = [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];

/// A size for a sentence: `4 GiB`.
fn size(bytes: u64) -> String {
    match unit_of(bytes) {
        Some((unit, letter)) => format!("{} {letter}iB", bytes / unit),
        None => format!("{bytes} bytes"),
    }
}

/// A size for an option: `4G`.
fn size_option(bytes: u64) -> String {
    match unit_of(bytes) {
        Some((unit, letter)) => format!("{}{letter}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// The largest unit of which the size is a multiple.
fn unit_of(bytes: u64) -> Option<(u64, &'static str)> {
    UNITS.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))
}
