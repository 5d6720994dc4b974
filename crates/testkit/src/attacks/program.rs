//! The attacks themselves: their texts, embedded, and what their first lines say about them.

use windlass_client::protocol::confinement::{Control, Isolation};
use windlass_client::protocol::policy::Limits;

/// One program that tries something forbidden.
#[derive(Debug, Clone)]
pub struct Attack {
    /// The file's name without its ending.
    pub program: &'static str,
    /// What it tries.
    pub name: &'static str,
    /// The contract's line.
    pub line: u32,
    pub needs: Needs,
    /// The levels that claim to refuse it.
    pub levels: Vec<Isolation>,
    /// The control without which nothing is claimed.
    pub control: Option<Control>,
    pub limits: Limits,
    pub(super) language: Language,
    pub(super) session: SessionKind,
    pub(super) judged: Judged,
    pub(super) text: &'static str,
}

/// Whose rights an attack is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Anyone,
    /// It would be refused to an ordinary user anywhere.
    Root,
    /// Root has nothing to gain by it.
    User,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    /// In a subprocess of the worker.
    Python,
    /// In the worker itself.
    PythonInWorker,
    C,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionKind {
    /// With the other attacks of its level.
    Shared,
    Own,
}

/// Who knows whether an attack came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    ByItself,
    /// It may have changed a private copy: only what is seen outside counts.
    Outside,
}

macro_rules! texts {
    ($ending:literal: $($name:literal),* $(,)?) => {
        [$(($name, $ending, include_str!(concat!("../../attacks/", $name, ".", $ending)))),*]
    };
}

type Text = (&'static str, &'static str, &'static str);

const IN_PYTHON: &[Text] = &texts!["py":
    "ask_name_server",
    "ask_the_node",
    "change_mode_outside",
    "connect_by_socketpair",
    "fill_tmp",
    "fill_workspace",
    "find_secrets_in_all_environments",
    "find_secrets_in_environment",
    "find_secrets_in_own_memory",
    "find_secrets_in_subprocess",
    "find_unlisted_variables",
    "forge_keeper_commands",
    "forge_worker_frames",
    "fork_bomb",
    "large_file",
    "leave_cgroup",
    "leave_word_in_shared_memory",
    "limit_the_keeper",
    "list_hidden_directory",
    "make_agent_settings",
    "make_outside",
    "many_open_files",
    "memory_bomb",
    "memory_by_many",
    "open_devices",
    "open_network_devices",
    "raise_limits",
    "reach_abstract_socket",
    "reach_abstract_socket_of_session",
    "reach_process_one",
    "reach_tcp",
    "reach_tcp_by_fast_open",
    "reach_tcp_by_multipath",
    "reach_udp",
    "reach_unix_socket_by_link",
    "reach_unix_socket_in_workspace",
    "reach_unix_socket_made_later",
    "reach_unix_socket_made_later_in_project",
    "reach_unix_socket_made_later_in_workspace",
    "reach_unix_socket_under_other_name",
    "reach_unix_sockets",
    "read_hidden_attributes",
    "read_host_tmp",
    "read_journal",
    "read_kernel_files",
    "read_memory_by_proc",
    "read_other_workspace",
    "read_posix_shared_memory",
    "read_runtime_directory",
    "read_secret_behind_link",
    "read_secret_by_dot_dot",
    "read_secret_by_hard_link",
    "read_secret_by_other_root",
    "read_secret_by_others_descriptors",
    "read_secret_by_path_descriptor",
    "read_secret_by_proc_self_root",
    "read_secret_by_protected_link",
    "read_secret_by_race",
    "read_secret_by_rename",
    "read_secret_by_symlink",
    "read_secret_directly",
    "read_secret_made_later",
    "read_secret_rewritten_later",
    "read_shadow",
    "remove_outside",
    "rename_into_workspace",
    "rename_out_of_workspace",
    "replace_git_directory",
    "run_before_all_others",
    "run_setuid_program",
    "see_other_processes",
    "send_to_unix_socket",
    "signal_by_descriptor_owner",
    "signal_everything",
    "signal_others",
    "slow_others_down",
    "start_another_node",
    "stat_hidden_path",
    "thread_bomb",
    "truncate_outside",
    "use_inherited_descriptors",
    "use_the_workers_descriptors",
    "write_agent_settings",
    "write_etc",
    "write_git_hook",
    "write_home_by_descriptor",
    "write_home_by_dot_dot",
    "write_home_by_hard_link",
    "write_home_by_symlink",
    "write_home_directly",
    "write_host_tmp",
    "write_interpreter",
    "write_journal",
    "write_kernel_settings",
    "write_memory_by_proc",
    "write_other_workspace",
    "write_program_directories",
    "write_to_terminal",
    "write_user_site",
    "write_windlass_program",
    "write_workers_program",
];

const IN_C: &[Text] = &texts!["c":
    "ask_netlink",
    "become_another_user",
    "call_by_interrupt",
    "call_by_x32",
    "change_owner",
    "compare_with_keeper",
    "count_events",
    "escape_by_chroot",
    "escape_by_pivot_root",
    "gain_capabilities",
    "handle_page_faults",
    "hold_memory_behind_ended_thread",
    "hold_memory_in_descriptors",
    "hold_memory_in_threads_descriptors",
    "hold_memory_unseen",
    "join_namespaces",
    "load_bpf",
    "load_module",
    "make_system_writable",
    "make_user_namespace_by_clone",
    "make_user_namespace_by_clone3",
    "make_user_namespace_by_unshare",
    "mount_file_systems",
    "open_odd_sockets",
    "open_vsock",
    "read_disk_by_own_node",
    "read_memory_of_others",
    "read_posix_queue",
    "read_secret_by_bind_mount",
    "read_secret_by_exchange",
    "read_secret_by_handle",
    "read_secret_by_open_tree",
    "read_secret_by_openat2",
    "read_secret_by_overlay",
    "read_system_v_memory",
    "read_system_v_queue",
    "rule_the_machine",
    "send_raw_packets",
    "set_the_clock",
    "signal_by_pidfd",
    "take_descriptors_of_others",
    "trace_others",
    "trace_own_child",
    "type_into_terminal",
    "uncover_hidden_path",
    "use_io_uring",
    "use_keyring",
    "use_ports",
    "watch_the_file_system",
];

/// Every attack, by contract line and name.
///
/// # Panics
/// When an attack's first lines cannot be understood.
pub fn all() -> Vec<Attack> {
    let texts = IN_PYTHON.iter().chain(IN_C);
    let read = |text: &Text| {
        read(*text).unwrap_or_else(|why| panic!("the attack {}.{}: {why}", text.0, text.1))
    };
    let mut attacks: Vec<Attack> = texts.map(read).collect();
    attacks.sort_by_key(|attack| (attack.line, attack.program));
    attacks
}

impl Attack {
    /// Whether a session of this level promises to refuse it.
    pub fn claimed_by(&self, level: Isolation) -> bool {
        self.levels.contains(&level)
    }

    /// Whether it is about the rights that this process has.
    pub fn is_for_this_user(&self) -> bool {
        let root = rustix::process::geteuid().is_root();
        match self.needs {
            Needs::Anyone => true,
            Needs::Root => root,
            Needs::User => !root,
        }
    }
}

/// Reads the lines `# key: value` that a program opens with.
fn read((program, ending, text): Text) -> Result<Attack, String> {
    let mark = if ending == "py" { "# " } else { "// " };
    let mut attack = Attack {
        program,
        name: "",
        line: 0,
        needs: Needs::Anyone,
        levels: vec![Isolation::Full, Isolation::Landlock],
        control: None,
        limits: Limits::default(),
        language: if ending == "py" { Language::Python } else { Language::C },
        session: SessionKind::Shared,
        judged: Judged::ByItself,
        text,
    };
    let header = text.lines().map_while(|line| line.strip_prefix(mark)?.split_once(": "));
    for (key, value) in header {
        match (key, value) {
            ("name", name) => attack.name = name,
            ("line", line) => attack.line = line.parse().map_err(|_| "a line is a number")?,
            ("needs", "root") => attack.needs = Needs::Root,
            ("needs", "user") => attack.needs = Needs::User,
            ("session", "own") => attack.session = SessionKind::Own,
            ("judged", "outside") => attack.judged = Judged::Outside,
            ("runs", "in the worker") => attack.language = Language::PythonInWorker,
            // A known gap (`docs/security.md`): it is run, and nothing is promised about it.
            ("levels", "nowhere") => attack.levels = Vec::new(),
            ("levels", levels) => attack.levels = words(levels)?,
            ("control", control) => attack.control = words(control)?.pop(),
            ("limits", limits) => attack.limits = read_limits(limits)?,
            _ => return Err(format!("{key}: {value:?} means nothing")),
        }
    }
    if attack.name.is_empty() || attack.line == 0 {
        return Err("it has no name or no line".to_owned());
    }
    Ok(attack)
}

fn words<T: serde::de::DeserializeOwned>(text: &str) -> Result<Vec<T>, String> {
    let one = |word: &str| serde_json::from_value(word.into()).map_err(|error| error.to_string());
    text.split_ascii_whitespace().map(one).collect()
}

/// `processes=40 file_bytes=1000`.
fn read_limits(text: &str) -> Result<Limits, String> {
    let mut object = serde_json::Map::new();
    for limit in text.split_ascii_whitespace() {
        let (name, number) = limit.split_once('=').ok_or("a limit is name=number")?;
        let number: u64 = number.parse().map_err(|_| "a limit is a number")?;
        object.insert(name.to_owned(), number.into());
    }
    serde_json::from_value(object.into()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// At least so many, and so many of them in C.
    const ATTACKS_MIN: usize = 66;
    const IN_C_MIN: usize = 15;

    #[test]
    fn every_program_in_the_directory_is_listed_and_can_be_read() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("attacks");
        let files: BTreeSet<String> = std::fs::read_dir(directory)
            .expect("the attacks")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| name.contains('.'))
            .collect();
        let listed = IN_PYTHON.iter().chain(IN_C);
        let listed = listed.map(|(name, ending, _)| format!("{name}.{ending}")).collect();
        assert_eq!(files, listed);
        assert!(all().len() >= ATTACKS_MIN && IN_C.len() >= IN_C_MIN);
        let names: BTreeSet<&str> = all().iter().map(|attack| attack.program).collect();
        assert_eq!(names.len(), all().len(), "two attacks of one name");
    }

    #[test]
    fn the_lines_of_confinement_have_attacks() {
        let lines: BTreeSet<u32> = all().iter().map(|attack| attack.line).collect();
        assert_eq!(lines, BTreeSet::from([50, 51, 52, 53, 54, 55, 57, 58]));
    }

    #[test]
    fn a_header_that_means_nothing_is_refused() {
        let refused = |text| read(("x", "py", text)).expect_err("no attack");
        assert!(refused("# name: x\n# lines: 50\n").contains("lines"));
        assert!(refused("# line: 50\n").contains("no name"));
        let good = read(("x", "c", "// name: a: b\n// line: 53\n// limits: processes=4\n"));
        let good = good.expect("an attack");
        assert_eq!((good.name, good.limits.processes), ("a: b", Some(4)));
    }
}
