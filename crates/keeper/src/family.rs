//! A session's twins, as the keeper that made their keepers sees them. It ends what a keeper has left
//! when that is gone, and stays, without a session of its own, for as long as there is one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use windlass_protocol::SessionId;
use windlass_sandbox::twin::{Part, TwinKeeper, end_other_inits, other_keepers};

use crate::egress::Egress;
use crate::fork::Forking;
use crate::keeper::Keeper;
use crate::own::Own;
use crate::stage::Stage;

#[derive(Debug, Default)]
pub(crate) struct Family {
    twins: Vec<Twin>,
    /// Keepers of twins' twins that the family's first keeper watches, since the one that had made them is gone.
    adopted: Vec<TwinKeeper>,
    /// Twins without a keeper, until nothing of them is left.
    ending: Vec<Ending>,
    /// The first processes of the namespaces that twins are in.
    pub inits: Vec<u32>,
    /// The one of them that another keeper holds, and ends.
    pub foreign: Option<u32>,
    /// The ways out of networks that only twins are in.
    pub egress: Vec<Egress>,
    /// The fork that is being made.
    pub forking: Option<Forking>,
    /// Where the next twin's place will be, once there was a first.
    pub room: Option<PathBuf>,
    /// The session itself is over: this keeper only holds the others.
    pub retired: bool,
    /// Somebody outside wants this keeper to stop, and with it all that it holds.
    pub stopped: bool,
}

/// A twin whose keeper lives.
#[derive(Debug)]
struct Twin {
    session: SessionId,
    keeper: TwinKeeper,
    part: Part,
}

#[derive(Debug)]
struct Ending {
    part: Part,
    /// One of its processes, which was killed.
    waited: OwnedFd,
}

impl Family {
    pub fn add(&mut self, session: SessionId, keeper: TwinKeeper, part: Part) {
        self.twins.push(Twin { session, keeper, part });
    }

    /// Processes that are in this session's cgroups, or below its worker, and not its own: the first of
    /// the namespace, and twins that are still on their way into their own cgroups.
    pub fn spared(&self) -> Vec<u32> {
        let twins = self.twins.iter().map(|twin| twin.part.root());
        self.inits.iter().copied().chain(twins).collect()
    }

    /// The keepers of its twins.
    pub fn keepers(&self) -> Vec<u32> {
        self.kept().map(TwinKeeper::pid).collect()
    }

    fn kept(&self) -> impl Iterator<Item = &TwinKeeper> {
        self.twins.iter().map(|twin| &twin.keeper).chain(&self.adopted)
    }

    pub fn is_empty(&self) -> bool {
        self.twins.is_empty() && self.ending.is_empty() && self.adopted.is_empty()
    }

    /// Handles that tell when to look again.
    pub fn waited(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let keepers = self.kept().map(TwinKeeper::handle);
        self.ending.iter().map(|ending| ending.waited.as_fd()).chain(keepers)
    }

    /// The session that stands for the family at the node's proxy, when the first is gone.
    fn spokesman(&self) -> Option<&SessionId> {
        self.twins.first().map(|twin| &twin.session)
    }

    /// Kills the keepers of all twins; what they leave follows when they have ended.
    pub fn end_all(&self) {
        self.kept().for_each(TwinKeeper::kill);
    }
}

impl Keeper {
    /// Where keepers of twins have ended, whatever they left ends, too.
    pub(crate) fn note_twins(&mut self) {
        if self.family.kept().next().is_none() {
            return;
        }
        let watched = self.family.kept().count();
        self.family.adopted.retain(|keeper| !keeper.has_ended());
        let is_gone = |twin: &mut Twin| twin.keeper.has_ended();
        let gone: Vec<Twin> = self.family.twins.extract_if(.., is_gone).collect();
        if self.family.kept().count() < watched {
            // Those that it had made are without a watch now.
            let others = other_keepers(&self.family.keepers());
            self.family.adopted.extend(others);
            let own = self.worker().and_then(|worker| worker.init);
            let known: Vec<u32> = self.family.inits.iter().copied().chain(own).collect();
            end_other_inits(&known);
        }
        for Twin { part, .. } in gone {
            self.end_part(part);
        }
        self.settle_family();
    }

    /// Something of a twin has ended: its keeper, or a process of one that has no keeper any more.
    pub(crate) fn look_at_ending(&mut self) {
        for Ending { part, .. } in std::mem::take(&mut self.family.ending) {
            self.end_part(part);
        }
        self.note_twins();
        self.settle_family();
    }

    fn end_part(&mut self, part: Part) {
        if let Some(waited) = part.kill(&self.family.spared()) {
            self.family.ending.push(Ending { part, waited });
        }
    }

    /// The last twin is gone: the session is alone again.
    fn settle_family(&mut self) {
        let name = self.family.spokesman().cloned();
        for egress in &mut self.family.egress {
            if let Some(session) = &name {
                egress.speak_for(session.clone());
            }
        }
        if !self.family.is_empty() {
            return;
        }
        let current = self.worker().and_then(|worker| worker.init);
        self.family.egress.clear();
        let foreign = self.family.foreign;
        let inits = std::mem::replace(&mut self.family.inits, foreign.into_iter().collect());
        for init in inits {
            if Some(init) != current
                && Some(init) != foreign
                && let Some(init) = Pid::from_raw(init.cast_signed())
            {
                let _ = kill_process(init, Signal::KILL);
            }
        }
        if let Own::Child(_) = self.own {
            self.own = Own::Everything;
        }
    }

    /// A worker was started while there are twins: what is its own is a part again.
    pub(crate) fn claim_own(&mut self, worker: u32, init: Option<u32>) {
        self.own = Own::Everything;
        if self.family.is_empty() {
            return;
        }
        let cgroups = self.launch.as_ref().map(|launch| launch.cgroups.clone()).unwrap_or_default();
        if let Ok(part) = Part::of(worker, &cgroups) {
            self.own = Own::Child(part);
        }
        self.family.inits.extend(init);
    }

    /// The worker is about to be replaced: twins may still need its way out.
    pub(crate) fn leave_egress(&mut self) {
        if let Some(mut egress) = self.egress.take().filter(|_| !self.family.is_empty()) {
            if let Some(session) = self.family.spokesman() {
                egress.speak_for(session.clone());
            }
            self.family.egress.push(egress);
        }
    }

    /// The session is over and twins live: nothing is left of it but this process, which holds them.
    pub(crate) fn retire(&mut self) {
        if self.family.retired {
            return;
        }
        self.family.retired = true;
        if let Some(node) = &mut self.node {
            let _ = node.flush(&self.link);
        }
        self.leave_egress();
        self.remove_socket();
        self.listener = None;
        self.node = None;
        self.callers.clear();
        self.alone_since = None;
        self.stage = Stage::Down;
        self.own = Own::Everything;
        self.watch = crate::watch::Watch::default();
    }

    /// Whether a retired keeper has nobody left to hold.
    pub(crate) fn may_leave(&self) -> bool {
        self.family.retired && self.family.is_empty()
    }
}
