//! The faults of a run, from its seed: which, when and for how long. A pure function.
//!
//! Faults overlap, but no two use the same part of the world at the same time. Which server is the leader is known only
//! when the fault begins, so a schedule names its role.

use crate::chaos::random::Random;

/// The number of servers of the store.
pub const SERVERS: usize = 3;

/// The number of nodes.
const NODES_MIN: u64 = 3;
const NODES_MAX: u64 = 5;

/// How long the clients work before the first fault.
const FIRST_MS: u64 = 1_000;

/// The pause between the beginnings of two faults.
const PAUSE_MS: (u64, u64) = (500, 4_000);

/// How long a fault lasts. Short: nobody is fenced. Long: longer than a short lease. Lost: longer than the time after
/// which sessions with the shortest times are lost.
const SHORT_MS: (u64, u64) = (200, 2_500);
const LONG_MS: (u64, u64) = (2_500, 9_000);
const LOST_MS: (u64, u64) = (14_000, 20_000);

/// How far the wall clock of a node jumps, either way.
const CLOCK_MS: u64 = 3_600_000;

/// Attempts to find a fault whose parts are free.
const ATTEMPTS: usize = 20;

/// A machine of the fleet's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkMember {
    Node(usize),
    Server(usize),
}

/// Which server of the store a fault is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerRole {
    /// The leader of the directory's stream.
    Leader,
    /// A server that is not the leader.
    Follower,
}

/// Which packets a partition drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionWay {
    Both,
    /// Only those to the smaller side.
    Inwards,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetFault {
    /// kill -9, and a start at the end.
    NodeKilled(usize),
    /// SIGSTOP, and SIGCONT at the end.
    NodeStopped(usize),
    ServerKilled(ServerRole),
    ServerStopped(ServerRole),
    AllServersKilled,
    /// kill -9, and what was not synced to the disk is gone.
    ServerPowerLoss(ServerRole),
    AllServersPowerLoss,
    /// These members and all others do not reach each other.
    Partition {
        side: Vec<NetworkMember>,
        way: PartitionWay,
    },
    /// The network interface of a member is down.
    LinkDown(NetworkMember),
    SlowLink(NetworkMember),
    /// The wall clock of a node is wrong by this much.
    ClockJump {
        node: usize,
        offset_ms: i64,
    },
}

/// A fault, and when it begins and ends, in milliseconds since the clients began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledFault {
    pub begin_ms: u64,
    pub end_ms: u64,
    pub fault: FleetFault,
}

/// What a seed decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetSchedule {
    pub nodes: usize,
    /// The keys `lease` and `lost_after` of `[fleet]`.
    pub lease: &'static str,
    pub lost_after: &'static str,
    pub faults: Vec<ScheduledFault>,
}

/// A part of the world that one fault at a time uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorldPart {
    Node(usize),
    Servers,
    Network,
    Clock,
}

impl FleetFault {
    pub fn name(&self) -> &'static str {
        match self {
            Self::NodeKilled(_) => "node killed",
            Self::NodeStopped(_) => "node stopped",
            Self::ServerKilled(ServerRole::Leader) => "leader killed",
            Self::ServerKilled(ServerRole::Follower) => "follower killed",
            Self::ServerStopped(ServerRole::Leader) => "leader stopped",
            Self::ServerStopped(ServerRole::Follower) => "follower stopped",
            Self::AllServersKilled => "all servers killed",
            Self::ServerPowerLoss(_) => "power loss of a server",
            Self::AllServersPowerLoss => "power loss of all servers",
            Self::Partition { .. } => "partition",
            Self::LinkDown(_) => "link down",
            Self::SlowLink(_) => "slow link",
            Self::ClockJump { .. } => "clock jump",
        }
    }

    fn part(&self) -> WorldPart {
        match self {
            Self::NodeKilled(node) | Self::NodeStopped(node) => WorldPart::Node(*node),
            Self::ServerKilled(_)
            | Self::ServerStopped(_)
            | Self::AllServersKilled
            | Self::ServerPowerLoss(_)
            | Self::AllServersPowerLoss => WorldPart::Servers,
            Self::Partition { .. } | Self::LinkDown(_) | Self::SlowLink(_) => WorldPart::Network,
            Self::ClockJump { .. } => WorldPart::Clock,
        }
    }
}

impl FleetSchedule {
    /// The schedule of a seed, whose clients work for this time.
    pub fn of(seed: u64, work_ms: u64) -> Self {
        let mut random = Random::of(&[seed, 0]);
        let nodes = count(random.within(NODES_MIN, NODES_MAX));
        // Half of the runs have the shortest times that the configuration allows, so that sessions are lost. In the
        // others most sessions survive an election of the store's leader.
        let (lease, lost_after) = *random.pick(&[("2s", "10s"), ("8s", "30s")]);
        let mut faults: Vec<ScheduledFault> = Vec::new();
        let mut begin_ms = FIRST_MS;
        while begin_ms < work_ms {
            faults.extend(one_fault(&mut random, nodes, (begin_ms, work_ms), &faults));
            begin_ms += random.within(PAUSE_MS.0, PAUSE_MS.1);
        }
        Self { nodes, lease, lost_after, faults }
    }
}

fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or_default()
}

/// A fault whose part of the world no other fault uses at that time. `None` if none is found.
fn one_fault(
    random: &mut Random,
    nodes: usize,
    (begin_ms, work_ms): (u64, u64),
    others: &[ScheduledFault],
) -> Option<ScheduledFault> {
    for _ in 0..ATTEMPTS {
        let fault = any_fault(random, nodes);
        let (low, high) = random.weighted(&[(SHORT_MS, 5), (LONG_MS, 4), (LOST_MS, 1)]);
        let end_ms = (begin_ms + random.within(low, high)).min(work_ms);
        let is_free = |other: &ScheduledFault| {
            other.fault.part() != fault.part() || other.end_ms < begin_ms || end_ms < other.begin_ms
        };
        if others.iter().all(is_free) {
            return Some(ScheduledFault { begin_ms, end_ms, fault });
        }
    }
    None
}

fn any_fault(random: &mut Random, nodes: usize) -> FleetFault {
    let node = count(random.below(nodes as u64));
    let role = *random.pick(&[ServerRole::Leader, ServerRole::Follower]);
    let member = any_member(random, nodes);
    match random.weighted(&[
        (0, 5),
        (1, 4),
        (2, 3),
        (3, 3),
        (4, 2),
        (5, 2),
        (6, 2),
        (7, 6),
        (8, 2),
        (9, 2),
        (10, 1),
    ]) {
        0 => FleetFault::NodeKilled(node),
        1 => FleetFault::NodeStopped(node),
        2 => FleetFault::ServerKilled(role),
        3 => FleetFault::ServerStopped(role),
        4 => FleetFault::AllServersKilled,
        5 => FleetFault::ServerPowerLoss(role),
        6 => FleetFault::AllServersPowerLoss,
        7 => partition(random, nodes),
        8 => FleetFault::LinkDown(member),
        9 => FleetFault::SlowLink(member),
        _ => {
            let magnitude = i64::try_from(random.within(1_000, CLOCK_MS)).unwrap_or_default();
            let offset_ms = if random.chance(50) { magnitude } else { -magnitude };
            FleetFault::ClockJump { node, offset_ms }
        }
    }
}

fn any_member(random: &mut Random, nodes: usize) -> NetworkMember {
    let members = members(nodes);
    *random.pick(&members)
}

/// All machines: the nodes, then the servers.
pub fn members(nodes: usize) -> Vec<NetworkMember> {
    let nodes = (0..nodes).map(NetworkMember::Node);
    nodes.chain((0..SERVERS).map(NetworkMember::Server)).collect()
}

/// A cut between a random set, which is neither empty nor everything, and all others.
fn partition(random: &mut Random, nodes: usize) -> FleetFault {
    let members = members(nodes);
    let mut side: Vec<NetworkMember> =
        members.iter().copied().filter(|_| random.chance(35)).collect();
    if side.is_empty() || side.len() == members.len() {
        side = vec![*random.pick(&members)];
    }
    let way = random.weighted(&[(PartitionWay::Both, 3), (PartitionWay::Inwards, 1)]);
    FleetFault::Partition { side, way }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const WORK_MS: u64 = 60_000;
    const SEEDS: u64 = 200;

    #[test]
    fn a_seed_has_one_schedule() {
        assert_eq!(FleetSchedule::of(7, WORK_MS), FleetSchedule::of(7, WORK_MS));
        assert_ne!(FleetSchedule::of(7, WORK_MS), FleetSchedule::of(8, WORK_MS));
    }

    #[test]
    fn all_faults_end_in_time_and_those_of_one_part_do_not_overlap() {
        for seed in 0..SEEDS {
            let schedule = FleetSchedule::of(seed, WORK_MS);
            assert!((3..=5).contains(&schedule.nodes), "seed {seed}: {schedule:?}");
            assert!(schedule.faults.len() > 5, "seed {seed}: {schedule:?}");
            for (at, fault) in schedule.faults.iter().enumerate() {
                assert!(fault.begin_ms <= fault.end_ms && fault.end_ms <= WORK_MS, "{fault:?}");
                let same = |other: &&ScheduledFault| other.fault.part() == fault.fault.part();
                for other in schedule.faults[..at].iter().filter(same) {
                    assert!(other.end_ms < fault.begin_ms, "seed {seed}: {other:?} {fault:?}");
                }
            }
        }
    }

    #[test]
    fn every_kind_of_fault_comes_up_and_partitions_have_two_sides() {
        let mut names = BTreeSet::new();
        for seed in 0..SEEDS {
            let schedule = FleetSchedule::of(seed, WORK_MS);
            for planned in &schedule.faults {
                names.insert(planned.fault.name());
                if let FleetFault::Partition { side, .. } = &planned.fault {
                    assert!(!side.is_empty() && side.len() < schedule.nodes + SERVERS, "{side:?}");
                }
            }
        }
        assert_eq!(names.len(), 13, "{names:?}");
    }
}
