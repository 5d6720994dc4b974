//! A session's twins, as the keeper that made their keepers sees them. It ends what a keeper has left
//! when that is gone, and stays, without a session of its own, for as long as there is one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use windlass_procs::twin::{Part, TwinKeeper, end_other_inits, other_keepers};
use windlass_protocol::SessionId;

use crate::egress::Egress;
use crate::fork::Forking;
use crate::own::Own;

#[derive(Debug, Default)]
pub(crate) struct Family {
    /// Which processes are the session's.
    pub own: Own,
    /// A process of the session that was killed, where no signal tells of its end.
    pub killed: Option<OwnedFd>,
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

/// The ends of twins. `init` is the first process of the namespace that the session's own worker is in.
impl Family {
    /// Where keepers of twins have ended, whatever they left ends, too.
    pub fn note_twins(&mut self, init: Option<u32>) {
        if self.kept().next().is_none() {
            return;
        }
        let watched = self.kept().count();
        self.adopted.retain(|keeper| !keeper.has_ended());
        let is_gone = |twin: &mut Twin| twin.keeper.has_ended();
        let gone: Vec<Twin> = self.twins.extract_if(.., is_gone).collect();
        if self.kept().count() < watched {
            // Those that it had made are without a watch now.
            let others = other_keepers(&self.keepers());
            self.adopted.extend(others);
            let known: Vec<u32> = self.inits.iter().copied().chain(init).collect();
            end_other_inits(&known);
        }
        for Twin { part, .. } in gone {
            self.end_part(part);
        }
        self.settle(init);
    }

    /// Something of a twin has ended: its keeper, or a process of one that has no keeper any more.
    pub fn look_at_ending(&mut self, init: Option<u32>) {
        for Ending { part, .. } in std::mem::take(&mut self.ending) {
            self.end_part(part);
        }
        self.note_twins(init);
        self.settle(init);
    }

    fn end_part(&mut self, part: Part) {
        if let Some(waited) = part.kill(&self.spared()) {
            self.ending.push(Ending { part, waited });
        }
    }

    /// The last twin is gone: the session is alone again.
    fn settle(&mut self, init: Option<u32>) {
        if let Some(session) = self.spokesman().cloned() {
            self.egress.iter_mut().for_each(|egress| egress.speak_for(session.clone()));
        }
        if !self.is_empty() {
            return;
        }
        self.egress.clear();
        let foreign = self.foreign;
        let inits = std::mem::replace(&mut self.inits, foreign.into_iter().collect());
        for one in inits {
            if Some(one) != init
                && Some(one) != foreign
                && let Some(one) = Pid::from_raw(one.cast_signed())
            {
                let _ = kill_process(one, Signal::KILL);
            }
        }
        if let Own::Child(_) = self.own {
            self.own = Own::Everything;
        }
    }

    /// A worker was started while there are twins: what is its own is a part again.
    pub fn claim_own(&mut self, worker: u32, init: Option<u32>, cgroups: &[PathBuf]) {
        self.own = Own::Everything;
        if self.is_empty() {
            return;
        }
        if let Ok(part) = Part::of(worker, cgroups) {
            self.own = Own::Child(part);
        }
        self.inits.extend(init);
    }

    /// There is a twin: what is this session's own is a part from now on, with what was there `before`.
    pub fn claim_first(
        &mut self,
        (worker, init): (u32, Option<u32>),
        cgroups: &[PathBuf],
        before: &[u32],
    ) {
        if let Some(init) = init
            && !self.inits.contains(&init)
        {
            self.inits.push(init);
        }
        if let Own::Everything = self.own
            && let Ok(part) = Part::of(worker, cgroups)
        {
            let spared = self.spared();
            let own = before.iter().copied().filter(|process| !spared.contains(process));
            part.remember(&own.collect::<Vec<u32>>());
            self.own = Own::Child(part);
        }
    }

    /// The worker is about to be replaced: twins may still need its way out.
    pub fn inherit(&mut self, egress: Option<Egress>) {
        if let Some(mut egress) = egress.filter(|_| !self.is_empty()) {
            if let Some(session) = self.spokesman() {
                egress.speak_for(session.clone());
            }
            self.egress.push(egress);
        }
    }

    /// Whether a retired keeper has nobody left to hold.
    pub fn may_leave(&self) -> bool {
        self.retired && self.is_empty()
    }
}
