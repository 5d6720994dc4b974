//! The network of a run: one network namespace for each node and each server, joined by a bridge. The bridge is in the
//! namespace of this process, so the clients reach every server. Faults drop packets, take links down or slow them.
//!
//! Drops happen where packets arrive, so a sender sees what it would see over a broken network: silence.

use std::process::Command;

use anyhow::{Context, Result};

use super::schedule::{NetworkMember, PartitionWay, members};
use crate::workspace::output_of;

const BRIDGE: &str = "chaos";

/// The directory of `ip netns`.
const NAMESPACES: &str = "/run/netns";

/// The first three numbers of all addresses, and the address of the bridge.
const PREFIX: &str = "10.77.0";
const BRIDGE_NUMBER: usize = 1;

/// The last number of the address of the first node, and of the first server.
const NODES_FROM: usize = 11;
const SERVERS_FROM: usize = 101;

/// What a slow link does: the options of a queueing discipline of `tc`.
pub const DELAY: &[&str] = &["netem", "delay", "150ms", "50ms"];
pub const LOW_RATE: &[&str] = &["tbf", "rate", "192kbit", "burst", "16k", "latency", "800ms"];

/// The namespaces and the bridge. They are removed with this value.
#[derive(Debug)]
pub struct ChaosNetwork {
    members: Vec<NetworkMember>,
}

impl ChaosNetwork {
    pub fn make(nodes: usize) -> Result<Self> {
        let network = Self { members: members(nodes) };
        let own = format!("{PREFIX}.{BRIDGE_NUMBER}/24");
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["address", "add", &own, "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        for member in &network.members {
            add(*member).with_context(|| format!("cannot make the namespace of {member:?}"))?;
        }
        Ok(network)
    }

    /// Drops the packets between one side and all other members.
    pub fn cut(&self, side: &[NetworkMember], way: PartitionWay) -> Result<()> {
        let others: Vec<NetworkMember> =
            self.members.iter().copied().filter(|member| !side.contains(member)).collect();
        for member in side {
            drop_from(*member, &others)?;
        }
        if way == PartitionWay::Both {
            for member in &others {
                drop_from(*member, side)?;
            }
        }
        Ok(())
    }

    /// Lets all packets through again.
    pub fn join(&self) -> Result<()> {
        for member in &self.members {
            inside(*member, &["iptables", "-w", "-F", "INPUT"])?;
        }
        Ok(())
    }

    /// Takes the link of a member down.
    pub fn unplug(&self, member: NetworkMember) -> Result<()> {
        ip(&["link", "set", &link(member), "down"])
    }

    pub fn plug(&self, member: NetworkMember) -> Result<()> {
        ip(&["link", "set", &link(member), "up"])
    }

    /// Slows what a member sends.
    pub fn slow(&self, member: NetworkMember, discipline: &[&str]) -> Result<()> {
        let command = ["tc", "qdisc", "replace", "dev", "eth0", "root"];
        inside(member, &[&command[..], discipline].concat())
    }

    pub fn quicken(&self, member: NetworkMember) -> Result<()> {
        inside(member, &["tc", "qdisc", "delete", "dev", "eth0", "root"])
    }
}

impl Drop for ChaosNetwork {
    fn drop(&mut self) {
        for member in &self.members {
            let _ = ip(&["link", "delete", &link(*member)]);
            let _ = ip(&["netns", "delete", &namespace(*member)]);
        }
        let _ = ip(&["link", "delete", BRIDGE]);
    }
}

/// The address of a member.
pub fn address(member: NetworkMember) -> String {
    let number = match member {
        NetworkMember::Node(number) => NODES_FROM + number,
        NetworkMember::Server(number) => SERVERS_FROM + number,
    };
    format!("{PREFIX}.{number}")
}

/// The option of `nsenter` that enters the namespace of a member.
pub fn enter(member: NetworkMember) -> String {
    format!("--net={NAMESPACES}/{}", namespace(member))
}

/// Whether the kernel has a queueing discipline.
pub fn has_discipline(discipline: &[&str]) -> bool {
    let made = run("tc", &[&["qdisc", "add", "dev", "lo", "root"], discipline].concat());
    if made.is_ok() {
        let _ = run("tc", &["qdisc", "delete", "dev", "lo", "root"]);
    }
    made.is_ok()
}

fn add(member: NetworkMember) -> Result<()> {
    let (namespace, link) = (namespace(member), link(member));
    let address = format!("{}/24", address(member));
    ip(&["netns", "add", &namespace])?;
    ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
    ip(&["link", "set", &link, "master", BRIDGE])?;
    ip(&["link", "set", &link, "up"])?;
    ip(&["-n", &namespace, "link", "set", "lo", "up"])?;
    ip(&["-n", &namespace, "address", "add", &address, "dev", "eth0"])?;
    ip(&["-n", &namespace, "link", "set", "eth0", "up"])
}

/// The member drops all packets from the others.
fn drop_from(member: NetworkMember, others: &[NetworkMember]) -> Result<()> {
    let others: Vec<String> = others.iter().map(|other| address(*other)).collect();
    inside(member, &["iptables", "-w", "-A", "INPUT", "-s", &others.join(","), "-j", "DROP"])
}

fn namespace(member: NetworkMember) -> String {
    match member {
        NetworkMember::Node(number) => format!("node{number}"),
        NetworkMember::Server(number) => format!("server{number}"),
    }
}

/// The name of the end of a member's link that is at the bridge.
fn link(member: NetworkMember) -> String {
    format!("to-{}", namespace(member))
}

fn inside(member: NetworkMember, command: &[&str]) -> Result<()> {
    let enter = enter(member);
    run("nsenter", &[&[enter.as_str(), "--"], command].concat())
}

fn ip(arguments: &[&str]) -> Result<()> {
    run("ip", arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    output_of(Command::new(program).args(arguments)).map(drop)
}
