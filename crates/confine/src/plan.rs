//! From a policy to a plan: every step by which a process will be confined, and what each control
//! amounts to here. Pure: what the machine and its files are like comes in as [`Machine`] and
//! [`Place`], so the same input gives the same plan.

pub mod apart;
pub mod base;
mod canaries;
mod controls;
mod rules;
mod view;

use windlass_protocol::confinement::{ControlReport, ControlState, Isolation};
use windlass_protocol::limits::REASON_BYTES_MAX;
pub use windlass_protocol::policy::PROXY_PORT;
use windlass_protocol::policy::{Network, Policy, UnixSockets};
use windlass_protocol::text::bounded;

pub use self::canaries::thorough;
use crate::machine::{Machine, Support};
pub(crate) use crate::steps::rights;
pub use crate::steps::{
    Access, Attempt, Canary, Internet, Kind, Mount, NetworkPlan, Plan, Resource, Rlimit, Rule,
    Ruleset, Sockets,
};
use crate::survey::{Depth, Place};

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error(
        "the policy requires the control {control:?}, and it cannot be enforced here: {why}; {remedy}"
    )]
    NotEnforceable { control: String, why: String, remedy: String },
    #[error("the isolation level {level} is not available here: {why}; {remedy}")]
    LevelUnavailable { level: Isolation, why: String, remedy: String },
}

/// Plans how a session with `policy` in `place` is confined on `machine`.
pub fn plan(policy: &Policy, machine: &Machine, place: &Place) -> Result<Plan, PlanError> {
    let isolation = choose(policy, machine)?;
    let mut plan = match isolation {
        Isolation::Full => full(policy, machine, place),
        Isolation::Landlock => landlock(policy, machine, place),
        Isolation::None => unconfined(),
    };
    plan.controls = controls::report(policy, machine, place, isolation);
    // They may name paths of others; all of them together go into one header.
    for report in &mut plan.controls {
        report.mechanism = bounded(&report.mechanism, REASON_BYTES_MAX);
        report.remedy = report.remedy.as_deref().map(|remedy| bounded(remedy, REASON_BYTES_MAX));
    }
    plan.required = policy.required.clone();
    plan.canaries = canaries::choose(&plan, policy, place);
    match plan.broken_promise() {
        Some(error) => Err(error),
        None => Ok(plan),
    }
}

/// How much a survey for [`plan()`] must find out.
pub fn depth(policy: &Policy, machine: &Machine) -> Depth {
    match choose(policy, machine) {
        Ok(Isolation::Landlock) => Depth::Rules,
        Ok(Isolation::Full | Isolation::None) | Err(_) => Depth::View,
    }
}

/// Whether a session with this policy gets a view in which protected names can be held.
pub fn holds_names(policy: &Policy, machine: &Machine) -> bool {
    choose(policy, machine) == Ok(Isolation::Full)
}

impl Plan {
    /// The first control that is required and not enforced.
    fn broken_promise(&self) -> Option<PlanError> {
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

/// The level asked for, or the strongest there is; never none by itself.
fn choose(policy: &Policy, machine: &Machine) -> Result<Isolation, PlanError> {
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

fn full(policy: &Policy, machine: &Machine, place: &Place) -> Plan {
    let network = match policy.network {
        Network::None => NetworkPlan::Own,
        Network::Hosts(_) => NetworkPlan::Proxy,
        Network::Open => NetworkPlan::Machine,
    };
    Plan {
        isolation: Isolation::Full,
        network,
        view: view::build(policy, place),
        landlock: rules::inside_view(policy, machine, place),
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
    }
}

fn landlock(policy: &Policy, machine: &Machine, place: &Place) -> Plan {
    Plan {
        isolation: Isolation::Landlock,
        network: NetworkPlan::Machine,
        view: Vec::new(),
        landlock: Some(rules::alone(policy, machine, place)),
        sockets: Some(Sockets {
            unix: unix_sockets(policy, machine, Isolation::Landlock),
            internet: match policy.network {
                Network::Open => Internet::Machine,
                Network::None | Network::Hosts(_) => Internet::None,
            },
        }),
        rlimits: rlimits(policy, ProcessLimit::BesidesOthers(place.user_processes)),
        canaries: Vec::new(),
        controls: Vec::new(),
        required: Vec::new(),
    }
}

/// Landlock's version from which on it keeps abstract unix sockets of others out of reach.
const HOLDS_ABSTRACT_SOCKETS: u32 = 6;

/// Landlock's version from which on it keeps unix sockets with a path out of reach.
const HOLDS_PATH_SOCKETS: u32 = 9;

/// Unix sockets with a name need a view in which those of others are covered; and, in the machine's
/// network, a kernel that keeps abstract ones out of reach.
fn unix_sockets(policy: &Policy, machine: &Machine, isolation: Isolation) -> UnixSockets {
    let abstract_held =
        policy.network != Network::Open || machine.landlock_abi >= HOLDS_ABSTRACT_SOCKETS;
    match isolation {
        Isolation::Full if abstract_held => policy.unix_sockets,
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
    }
}

/// Whose processes the kernel counts against the limit.
enum ProcessLimit {
    OfNamespace,
    /// All of the user's, so many of which are others.
    BesidesOthers(u64),
}

/// Processes of the session that are not the code's: its init, and the worker before it runs.
const OWN_PROCESSES: u64 = 2;

/// The kernel's own way to say that neither a file is written nor a program of the machine's started
/// with a dump: 0 forbids the file only.
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
