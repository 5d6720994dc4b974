//! A session's twins, as the keeper that made their keepers sees them. It ends what a keeper has left
//! when that is gone, and stays, without a session of its own, for as long as there is one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use windlass_procs::twin::{SessionProcesses, TwinKeeper, end_other_inits, other_keepers};
use windlass_protocol::SessionId;

use crate::egress::Egress;
use crate::fork::PendingFork;
use crate::process_scope::ProcessScope;

#[derive(Debug, Default)]
pub(crate) struct Family {
    /// Which processes are the session's.
    pub scope: ProcessScope,
    /// A process of the session that was killed, where no signal tells of its end.
    pub killed: Option<OwnedFd>,
    twins: Vec<LiveTwin>,
    /// Keepers of twins' twins that the family's first keeper watches, since the one that had made them is gone.
    adopted: Vec<TwinKeeper>,
    /// Twins without a keeper, until nothing of them is left.
    ending: Vec<EndingTwin>,
    /// The first processes of the namespaces that twins are in.
    pub inits: Vec<u32>,
    /// The one of them that another keeper holds, and ends.
    pub foreign_init: Option<u32>,
    /// The ways out of networks that only twins are in.
    pub egress: Vec<Egress>,
    /// The fork that is being made.
    pub forking: Option<PendingFork>,
    /// Where the next twin's place will be, once there was a first.
    pub room: Option<PathBuf>,
    /// The session itself is over: this keeper only holds the others.
    pub retired: bool,
    /// Somebody outside wants this keeper to stop, and with it all that it holds.
    pub stopped: bool,
}

/// A twin whose keeper lives.
#[derive(Debug)]
struct LiveTwin {
    session: SessionId,
    keeper: TwinKeeper,
    processes: SessionProcesses,
}

#[derive(Debug)]
struct EndingTwin {
    processes: SessionProcesses,
    /// One of its processes, which was killed.
    wait_for: OwnedFd,
}

impl Family {
    pub fn add(&mut self, session: SessionId, keeper: TwinKeeper, processes: SessionProcesses) {
        self.twins.push(LiveTwin { session, keeper, processes });
    }

    /// Processes that are in this session's cgroups, or below its worker, and not its own: the first of
    /// the namespace, and twins that are still on their way into their own cgroups.
    pub fn spared(&self) -> Vec<u32> {
        let twins = self.twins.iter().map(|twin| twin.processes.root());
        self.inits.iter().copied().chain(twins).collect()
    }

    /// The keepers of its twins.
    pub fn keepers(&self) -> Vec<u32> {
        self.twin_keepers().map(TwinKeeper::pid).collect()
    }

    fn twin_keepers(&self) -> impl Iterator<Item = &TwinKeeper> {
        self.twins.iter().map(|twin| &twin.keeper).chain(&self.adopted)
    }

    pub fn is_empty(&self) -> bool {
        self.twins.is_empty() && self.ending.is_empty() && self.adopted.is_empty()
    }

    /// Handles that tell when to look again.
    pub fn end_handles(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let keepers = self.twin_keepers().map(TwinKeeper::handle);
        self.ending.iter().map(|ending| ending.wait_for.as_fd()).chain(keepers)
    }

    /// The session that stands for the family at the node's proxy, when the first is gone.
    fn proxy_session(&self) -> Option<&SessionId> {
        self.twins.first().map(|twin| &twin.session)
    }

    /// Kills the keepers of all twins; what they leave follows when they have ended.
    pub fn end_all(&self) {
        self.twin_keepers().for_each(TwinKeeper::kill);
    }
}

/// The ends of twins. `init` is the first process of the namespace that the session's own worker is in.
impl Family {
    /// Where keepers of twins have ended, whatever they left ends, too.
    pub fn check_twin_keepers(&mut self, init: Option<u32>) {
        if self.twin_keepers().next().is_none() {
            return;
        }
        let watched = self.twin_keepers().count();
        self.adopted.retain(|keeper| !keeper.has_ended());
        let is_gone = |twin: &mut LiveTwin| twin.keeper.has_ended();
        let gone: Vec<LiveTwin> = self.twins.extract_if(.., is_gone).collect();
        if self.twin_keepers().count() < watched {
            // Those that it had made are without a watch now.
            let others = other_keepers(&self.keepers());
            self.adopted.extend(others);
            let known: Vec<u32> = self.inits.iter().copied().chain(init).collect();
            end_other_inits(&known);
        }
        for LiveTwin { processes, .. } in gone {
            self.kill_processes(processes);
        }
        self.settle(init);
    }

    /// Something of a twin has ended: its keeper, or a process of one that has no keeper any more.
    pub fn continue_ending(&mut self, init: Option<u32>) {
        for EndingTwin { processes, .. } in std::mem::take(&mut self.ending) {
            self.kill_processes(processes);
        }
        self.check_twin_keepers(init);
        self.settle(init);
    }

    fn kill_processes(&mut self, processes: SessionProcesses) {
        if let Some(wait_for) = processes.kill(&self.spared()) {
            self.ending.push(EndingTwin { processes, wait_for });
        }
    }

    /// The last twin is gone: the session is alone again.
    fn settle(&mut self, init: Option<u32>) {
        if let Some(session) = self.proxy_session().cloned() {
            self.egress.iter_mut().for_each(|egress| egress.speak_for(session.clone()));
        }
        if !self.is_empty() {
            return;
        }
        self.egress.clear();
        let foreign_init = self.foreign_init;
        let inits = std::mem::replace(&mut self.inits, foreign_init.into_iter().collect());
        for one in inits {
            if Some(one) != init
                && Some(one) != foreign_init
                && let Some(one) = Pid::from_raw(one.cast_signed())
            {
                let _ = kill_process(one, Signal::KILL);
            }
        }
        if let ProcessScope::OwnWorker(_) = self.scope {
            self.scope = ProcessScope::AllBelow;
        }
    }

    /// A worker was started while there are twins: what is its own is a part again.
    pub fn scope_new_worker(&mut self, worker: u32, init: Option<u32>, cgroups: &[PathBuf]) {
        self.scope = ProcessScope::AllBelow;
        if self.is_empty() {
            return;
        }
        if let Ok(processes) = SessionProcesses::of(worker, cgroups) {
            self.scope = ProcessScope::OwnWorker(processes);
        }
        self.inits.extend(init);
    }

    /// There is a twin: what is this session's own is a part from now on, with what was there `before`.
    pub fn narrow_scope(
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
        if let ProcessScope::AllBelow = self.scope
            && let Ok(processes) = SessionProcesses::of(worker, cgroups)
        {
            let spared = self.spared();
            let own = before.iter().copied().filter(|process| !spared.contains(process));
            processes.remember(&own.collect::<Vec<u32>>());
            self.scope = ProcessScope::OwnWorker(processes);
        }
    }

    /// The worker is about to be replaced: twins may still need its way out.
    pub fn inherit(&mut self, egress: Option<Egress>) {
        if let Some(mut egress) = egress.filter(|_| !self.is_empty()) {
            if let Some(session) = self.proxy_session() {
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
