//! Turns a policy into a plan: the steps that confine a process, and how each control is enforced on this
//! machine. Planning is pure: the state of the machine and of its files comes in as [`MachineSupport`] and
//! [`FileSurvey`], so the same input gives the same plan.

pub mod base;
mod canaries;
mod controls;
mod own_user;
mod rules;
pub mod twins;
mod view;

use windlass_protocol::confinement::{ControlReport, ControlState, Isolation};
use windlass_protocol::limits::REASON_BYTES_MAX;
pub use windlass_protocol::policy::PROXY_PORT;
use windlass_protocol::policy::{Network, Policy, UnixSockets};
use windlass_protocol::text::bounded;

pub use self::canaries::thorough;
use crate::machine::{MachineSupport, Support};
pub(crate) use crate::steps::rights;
pub use crate::steps::{
    Attempt, Canary, Internet, LandlockRule, Mount, MountAccess, NetworkPlan, PathKind, Plan,
    Resource, Rlimit, Ruleset, Sockets,
};
use crate::survey::{Depth, FileSurvey};

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error(
        "the policy requires the control {control:?}, and it cannot be enforced here: {why}; {remedy}"
    )]
    NotEnforceable { control: String, why: String, remedy: String },
    #[error("the isolation level {level} is not available here: {why}; {remedy}")]
    LevelUnavailable { level: Isolation, why: String, remedy: String },
    #[error("each session of this node has a user id of its own, and {why}; {remedy}")]
    NoOwnUser { why: &'static str, remedy: &'static str },
}

/// Plans how a session with `policy` is confined on `machine`, given the files in `survey`.
pub fn plan(
    policy: &Policy,
    machine: &MachineSupport,
    survey: &FileSurvey,
) -> Result<Plan, PlanError> {
    let isolation = choose(policy, machine)?;
    let mut plan = match isolation {
        Isolation::Full => full(policy, machine, survey),
        Isolation::Landlock => landlock(policy, machine, survey),
        Isolation::None => unconfined(),
    };
    plan.controls = controls::report(policy, machine, survey, isolation);
    // The texts may contain long paths, and all reports together must fit into one message header.
    for report in &mut plan.controls {
        report.mechanism = bounded(&report.mechanism, REASON_BYTES_MAX);
        report.remedy = report.remedy.as_deref().map(|remedy| bounded(remedy, REASON_BYTES_MAX));
    }
    plan.required = policy.required.clone();
    plan.canaries = canaries::choose(&plan, policy, survey);
    match plan.unenforced_requirement() {
        Some(error) => Err(error),
        None => Ok(plan),
    }
}

/// How much the survey for [`plan()`] must read.
pub fn depth(policy: &Policy, machine: &MachineSupport) -> Depth {
    match choose(policy, machine) {
        Ok(Isolation::Landlock) => Depth::Rules,
        Ok(Isolation::Full | Isolation::None) | Err(_) => Depth::View,
    }
}

/// Whether a session with this policy gets a view: only a view can protect names.
pub fn holds_names(policy: &Policy, machine: &MachineSupport) -> bool {
    choose(policy, machine) == Ok(Isolation::Full)
}

impl Plan {
    /// An error for the first control that is required and not enforced.
    fn unenforced_requirement(&self) -> Option<PlanError> {
        let broken = |report: &&ControlReport| {
            report.state == ControlState::NotEnforced && self.required.contains(&report.control)
        };
        self.controls.iter().find(broken).map(|report| PlanError::NotEnforceable {
            control: report.control.to_string(),
            why: report.mechanism.clone(),
            remedy: report.remedy.clone().unwrap_or_else(|| NO_REMEDY.to_owned()),
        })
    }
}

const NO_REMEDY: &str = "do not require it, or use another machine";

/// The level that the policy sets, or else the strongest available one. Level `none` is never chosen by
/// default.
fn choose(policy: &Policy, machine: &MachineSupport) -> Result<Isolation, PlanError> {
    let available = |level| machine.level(level);
    let unavailable = |level, support: &Support| match support {
        Support::Yes => None,
        Support::No { why, remedy } => {
            Some(PlanError::LevelUnavailable { level, why: why.clone(), remedy: remedy.clone() })
        }
    };
    match policy.isolation {
        Some(level) => unavailable(level, &available(level)).map_or(Ok(level), Err),
        None if available(Isolation::Full) == Support::Yes => Ok(Isolation::Full),
        None => unavailable(Isolation::Landlock, &available(Isolation::Landlock))
            .map_or(Ok(Isolation::Landlock), Err),
    }
}

fn full(policy: &Policy, machine: &MachineSupport, survey: &FileSurvey) -> Plan {
    let network = match policy.network {
        Network::None => NetworkPlan::Own,
        Network::Hosts(_) => NetworkPlan::Proxy,
        Network::Open => NetworkPlan::Machine,
    };
    Plan {
        isolation: Isolation::Full,
        network,
        view: view::build(policy, survey),
        landlock: rules::inside_view(policy, machine, survey),
        sockets: Some(Sockets {
            unix: unix_sockets(policy, machine, Isolation::Full),
            internet: match network {
                NetworkPlan::Machine => Internet::Machine,
                NetworkPlan::Own | NetworkPlan::Proxy => Internet::Own,
            },
        }),
        rlimits: rlimits(policy, ProcessLimit::OfNamespace),
        canaries: Vec::new(),
        controls: Vec::new(),
        required: Vec::new(),
        own_uid: None,
    }
}

fn landlock(policy: &Policy, machine: &MachineSupport, survey: &FileSurvey) -> Plan {
    Plan {
        isolation: Isolation::Landlock,
        network: NetworkPlan::Machine,
        view: Vec::new(),
        landlock: Some(rules::alone(policy, machine, survey)),
        sockets: Some(Sockets {
            unix: unix_sockets(policy, machine, Isolation::Landlock),
            internet: match policy.network {
                Network::Open => Internet::Machine,
                Network::None | Network::Hosts(_) => Internet::None,
            },
        }),
        rlimits: rlimits(policy, ProcessLimit::BesidesOthers(survey.user_processes)),
        canaries: Vec::new(),
        controls: Vec::new(),
        required: Vec::new(),
        own_uid: None,
    }
}

/// The first Landlock version that can restrict abstract unix sockets.
const ABSTRACT_SOCKETS_SINCE: u32 = 6;

/// The first Landlock version that can restrict unix sockets with a path.
const PATH_SOCKETS_SINCE: u32 = 9;

/// Which unix sockets a session can make. Named unix sockets need a view that covers the machine's sockets.
/// In the machine's network namespace they also need a Landlock that restricts abstract sockets.
fn unix_sockets(policy: &Policy, machine: &MachineSupport, isolation: Isolation) -> UnixSockets {
    let abstract_restricted =
        policy.network != Network::Open || machine.landlock_abi >= ABSTRACT_SOCKETS_SINCE;
    match isolation {
        Isolation::Full if abstract_restricted => policy.unix_sockets,
        Isolation::Full | Isolation::Landlock => UnixSockets::None,
        Isolation::None => UnixSockets::Local,
    }
}

fn unconfined() -> Plan {
    Plan {
        isolation: Isolation::None,
        network: NetworkPlan::Machine,
        view: Vec::new(),
        landlock: None,
        sockets: None,
        rlimits: Vec::new(),
        canaries: Vec::new(),
        controls: Vec::new(),
        required: Vec::new(),
        own_uid: None,
    }
}

/// Which processes the kernel counts against `RLIMIT_NPROC`.
enum ProcessLimit {
    /// The processes of the session's user namespace.
    OfNamespace,
    /// All processes of the user; this many of them do not belong to the session.
    BesidesOthers(u64),
}

/// Processes of a session that its code did not start: the init process, and the worker itself.
const OWN_PROCESSES: u64 = 2;

/// The value of `RLIMIT_CORE` that forbids core files and also core dumps that the kernel pipes into a
/// program. The value 0 forbids core files only.
const NO_CORE_DUMP: u64 = 1;

fn rlimits(policy: &Policy, processes: ProcessLimit) -> Vec<Rlimit> {
    let limits = &policy.limits;
    let besides = match processes {
        ProcessLimit::OfNamespace => OWN_PROCESSES,
        ProcessLimit::BesidesOthers(others) => others + OWN_PROCESSES,
    };
    let wanted = [
        (Resource::Data, limits.memory_bytes),
        (Resource::Processes, limits.processes.map(|most| u64::from(most) + besides)),
        (Resource::OpenFiles, limits.open_files.map(u64::from)),
        (Resource::FileSize, limits.file_bytes),
        (Resource::CoreDump, Some(NO_CORE_DUMP)),
    ];
    wanted
        .into_iter()
        .filter_map(|(resource, most)| Some(Rlimit { resource, most: most? }))
        .collect()
}

#[cfg(test)]
mod tests;
