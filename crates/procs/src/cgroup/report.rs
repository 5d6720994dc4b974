//! Reports on the limits that cgroups enforce where there are any: memory, processor time and number of
//! processes.

use windlass_protocol::confinement::{Control, ControlReport, ControlState, Isolation};
use windlass_protocol::policy::Limits;

use super::support::{CgroupSupport, Controller};

/// The reports on memory, cpu and process count of a session that runs as `uid`.
pub fn controls(
    support: &CgroupSupport,
    uid: u32,
    limits: &Limits,
    isolation: Isolation,
) -> Vec<ControlReport> {
    vec![
        memory(support, limits, isolation),
        cpu(support, limits),
        process_count(support, limits, ProcessRlimit::of(uid, isolation)),
    ]
}

/// What `RLIMIT_NPROC` counts for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessRlimit {
    /// The session has its own user namespace, so only its own processes count.
    CountsTheSession,
    /// All processes of the user count. The limit is set above the number that existed before.
    CountsTheUser,
    /// Nothing: `RLIMIT_NPROC` does not apply to root, and the level `none` does not set it.
    Nothing,
}

impl ProcessRlimit {
    fn of(uid: u32, isolation: Isolation) -> Self {
        match isolation {
            _ if uid == 0 => Self::Nothing,
            Isolation::Full => Self::CountsTheSession,
            Isolation::Landlock => Self::CountsTheUser,
            Isolation::None => Self::Nothing,
        }
    }
}

fn memory(support: &CgroupSupport, limits: &Limits, isolation: Isolation) -> ControlReport {
    let control = Control::Memory;
    let mechanism = by_cgroup(support, Controller::Memory).unwrap_or_else(|| {
        match isolation {
            Isolation::Full | Isolation::Landlock => {
                "RLIMIT_DATA of each process, and the keeper's watch of all together"
            }
            Isolation::None => "the keeper's watch of all processes together",
        }
        .to_owned()
    });
    match limits.memory_bytes {
        None => not_asked(control),
        Some(_) => enforced(control, mechanism),
    }
}

fn cpu(support: &CgroupSupport, limits: &Limits) -> ControlReport {
    let control = Control::Cpu;
    match by_cgroup(support, Controller::Cpu) {
        _ if limits.cpu_percent.is_none() => not_asked(control),
        Some(mechanism) => enforced(control, mechanism),
        None => not_enforced(control, support, "only a cgroup can limit processor time"),
    }
}

fn process_count(support: &CgroupSupport, limits: &Limits, rlimit: ProcessRlimit) -> ControlReport {
    let control = Control::ProcessCount;
    match (by_cgroup(support, Controller::Pids), rlimit) {
        _ if limits.processes.is_none() => not_asked(control),
        (Some(mechanism), _) => enforced(control, mechanism),
        (None, ProcessRlimit::CountsTheSession) => {
            enforced(control, "RLIMIT_NPROC in the session's own user namespace".to_owned())
        }
        (None, ProcessRlimit::CountsTheUser) => enforced(
            control,
            "RLIMIT_NPROC, which counts the user's other processes too".to_owned(),
        ),
        (None, ProcessRlimit::Nothing) => not_enforced(
            control,
            support,
            "the keeper ends a session with more processes, but the kernel does not refuse the fork",
        ),
    }
}

fn by_cgroup(support: &CgroupSupport, controller: Controller) -> Option<String> {
    let version = match support {
        CgroupSupport::V2 { .. } => 2,
        CgroupSupport::V1 { .. } => 1,
        CgroupSupport::None { .. } => return None,
    };
    support.has(controller).then(|| format!("cgroup v{version} {}", controller.as_str()))
}

fn report(control: Control, state: ControlState, mechanism: String) -> ControlReport {
    ControlReport { control, state, mechanism, tested: false, remedy: None }
}

fn not_asked(control: Control) -> ControlReport {
    report(control, ControlState::NotAsked, String::new())
}

fn enforced(control: Control, mechanism: String) -> ControlReport {
    report(control, ControlState::Enforced, mechanism)
}

fn not_enforced(control: Control, support: &CgroupSupport, why: &str) -> ControlReport {
    let (reason, remedy) = match support {
        CgroupSupport::None { reason, remedy } => (reason.as_str(), remedy.clone()),
        _ => (
            "this machine's cgroups lack the controller",
            "enable the controller in the parent cgroup of the node (systemd: Delegate=yes)"
                .to_owned(),
        ),
    };
    let mechanism = format!("{why}; {reason}");
    ControlReport { remedy: Some(remedy), ..report(control, ControlState::NotEnforced, mechanism) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 1000;

    fn said(support: &CgroupSupport, uid: u32, limits: &Limits, level: Isolation) -> Vec<String> {
        let line = |report: &ControlReport| {
            let remedy = if report.remedy.is_some() { " (remedy)" } else { "" };
            format!("{} {:?} {}{remedy}", report.control, report.state, report.mechanism)
        };
        controls(support, uid, limits, level).iter().map(line).collect()
    }

    #[test]
    fn with_cgroups_each_limit_names_its_controller() {
        let limits = Limits { cpu_percent: Some(50), ..Limits::DEFAULT };
        let controllers = vec![Controller::Memory, Controller::Pids];
        let support = CgroupSupport::V2 { parent: "/c".into(), controllers };
        assert_eq!(
            said(&support, 0, &limits, Isolation::Full),
            [
                "memory Enforced cgroup v2 memory",
                "cpu NotEnforced only a cgroup can limit processor time; this machine's cgroups \
                 lack the controller (remedy)",
                "process_count Enforced cgroup v2 pids",
            ]
        );
    }

    #[test]
    fn without_cgroups_each_limit_names_its_fallback() {
        let limits = Limits { cpu_percent: Some(50), ..Limits::DEFAULT };
        let none = CgroupSupport::None { reason: "why".into(), remedy: "do".into() };
        assert_eq!(
            said(&none, USER, &limits, Isolation::Full),
            [
                "memory Enforced RLIMIT_DATA of each process, and the keeper's watch of all together",
                "cpu NotEnforced only a cgroup can limit processor time; why (remedy)",
                "process_count Enforced RLIMIT_NPROC in the session's own user namespace",
            ]
        );
        let count = |uid, level| said(&none, uid, &limits, level).remove(2);
        assert!(count(USER, Isolation::Landlock).starts_with("process_count Enforced"));
        assert!(count(USER, Isolation::None).starts_with("process_count NotEnforced"));
        assert!(count(0, Isolation::Full).starts_with("process_count NotEnforced"));
        assert_eq!(
            said(&none, 0, &Limits::default(), Isolation::Full),
            ["memory NotAsked ", "cpu NotAsked ", "process_count NotAsked "]
        );
    }
}
