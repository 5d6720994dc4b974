//! The twins of a session, in the keeper that forked their keepers. When the keeper of a twin ends, this
//! keeper kills the processes that it left. This keeper stays as long as there is a twin, even after the end
//! of its own session.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use windlass_procs::HeldTree;
use windlass_procs::twin::{
    SessionProcesses, TwinKeeper, end_other_inits, kill_children_but, other_keepers,
};
use windlass_protocol::SessionId;

use crate::egress::Egress;
use crate::process_scope::ProcessScope;
use crate::watch::ProcessList;

#[derive(Debug, Default)]
pub(crate) struct Family {
    /// Which processes belong to the session.
    pub scope: ProcessScope,
    /// The pidfd of a killed process of the session that is not a child of this keeper.
    pub killed: Option<OwnedFd>,
    twins: Vec<LiveTwin>,
    /// Keepers of twins of twins. The keeper that forked them has ended, so the family's first keeper watches
    /// them.
    adopted: Vec<TwinKeeper>,
    /// Twins without a keeper, until all their processes have ended.
    ending: Vec<EndingTwin>,
    /// The inits of the pid namespaces that twins are in.
    pub inits: Vec<u32>,
    /// The one of `inits` that another keeper holds and kills.
    pub foreign_init: Option<u32>,
    /// Egress listeners of network namespaces that only twins are in.
    pub egress: Vec<Egress>,
    /// The directory for the next twin. Set with the first fork.
    pub room: Option<PathBuf>,
    /// The session is over: this keeper only holds its twins.
    pub retired: bool,
    /// This keeper got a stop signal, and ends with all twins.
    pub stopped: bool,
}

/// A twin whose keeper is alive.
#[derive(Debug)]
struct LiveTwin {
    session: SessionId,
    keeper: TwinKeeper,
    processes: SessionProcesses,
}

/// A twin whose keeper has ended, and whose processes are being killed.
#[derive(Debug)]
struct EndingTwin {
    processes: SessionProcesses,
    /// The pidfd of one of its killed processes.
    wait_for: OwnedFd,
}

impl Family {
    pub fn add(&mut self, session: SessionId, keeper: TwinKeeper, processes: SessionProcesses) {
        self.twins.push(LiveTwin { session, keeper, processes });
    }

    /// Processes that are in this session's cgroups or below its worker but do not belong to it: the inits,
    /// and twins that are not yet in their own cgroups. They are not killed with the session.
    pub fn spared(&self) -> Vec<u32> {
        let twins = self.twins.iter().map(|twin| twin.processes.root());
        self.inits.iter().copied().chain(twins).collect()
    }

    /// The process ids of the keepers of twins.
    pub fn keepers(&self) -> Vec<u32> {
        self.twin_keepers().map(TwinKeeper::pid).collect()
    }

    fn twin_keepers(&self) -> impl Iterator<Item = &TwinKeeper> {
        self.twins.iter().map(|twin| &twin.keeper).chain(&self.adopted)
    }

    pub fn is_empty(&self) -> bool {
        self.twins.is_empty() && self.ending.is_empty() && self.adopted.is_empty()
    }

    /// Pidfds of keepers of twins and of killed processes: the poll loop waits for their ends.
    pub fn end_handles(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let keepers = self.twin_keepers().map(TwinKeeper::handle);
        self.ending.iter().map(|ending| ending.wait_for.as_fd()).chain(keepers)
    }

    /// The session whose id the connections of `egress` carry to the node when the first session is gone.
    fn proxy_session(&self) -> Option<&SessionId> {
        self.twins.first().map(|twin| &twin.session)
    }

    /// Kills the keepers of all twins. Their processes are killed when the keepers have ended.
    pub fn end_all(&self) {
        self.twin_keepers().for_each(TwinKeeper::kill);
    }
}

/// The ends of twins. `init` is the init of the namespace that the session's own worker is in.
impl Family {
    /// Kills the processes of twins whose keepers have ended.
    pub fn check_twin_keepers(&mut self, init: Option<u32>) {
        if self.twin_keepers().next().is_none() {
            return;
        }
        let watched = self.twin_keepers().count();
        self.adopted.retain(|keeper| !keeper.has_ended());
        let is_gone = |twin: &mut LiveTwin| twin.keeper.has_ended();
        let gone: Vec<LiveTwin> = self.twins.extract_if(.., is_gone).collect();
        if self.twin_keepers().count() < watched {
            // Adopt the keepers that the ended keeper had forked: no keeper watches them any more.
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

    /// The keeper of a twin, or a process of a twin without a keeper, has ended: continues to end such twins.
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

    /// After a change of the twins: updates the session that egress connections count for. If the last twin
    /// is gone, the session owns every process below the keeper again.
    fn settle(&mut self, init: Option<u32>) {
        if let Some(session) = self.proxy_session().cloned() {
            self.egress.iter_mut().for_each(|egress| egress.set_session(session.clone()));
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

    /// A worker was started. If there are twins, the session's scope is that worker's processes.
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

    /// The first twin exists now. The session's scope becomes its worker's processes and those that it had
    /// `before` the fork.
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
            processes.track(&own.collect::<Vec<u32>>());
            self.scope = ProcessScope::OwnWorker(processes);
        }
    }

    /// Keeps the egress listener of a worker that is replaced, if there are twins: they may still use it.
    pub fn inherit(&mut self, egress: Option<Egress>) {
        if let Some(mut egress) = egress.filter(|_| !self.is_empty()) {
            if let Some(session) = self.proxy_session() {
                egress.set_session(session.clone());
            }
            self.egress.push(egress);
        }
    }

    /// Whether this is a retired keeper without twins.
    pub fn may_exit(&self) -> bool {
        self.retired && self.is_empty()
    }
}

impl Family {
    /// Sends SIGKILL to every process of this session.
    pub fn kill_session(&mut self, held: &HeldTree) {
        match self.scope.subset() {
            None => held.kill_all(),
            Some(processes) => self.killed = processes.kill(&self.spared()),
        }
        if let ProcessScope::TwinWorker(_) = self.scope {
            // Children of a twin's keeper are the remains of a worker that could not be started.
            kill_children_but(&self.keepers());
        }
    }

    /// Whether no process of this session is left. `no_child` says that this keeper has no child; that is
    /// enough if every process below the keeper belongs to the session.
    pub fn none_left(&self, no_child: bool) -> bool {
        match self.scope.subset() {
            None => no_child,
            Some(processes) => {
                let spared = self.spared();
                processes.members().iter().all(|pid| spared.contains(pid))
            }
        }
    }

    /// The processes of this session.
    pub fn listed(&self) -> ProcessList {
        match self.scope.subset() {
            None => ProcessList::below_this(),
            Some(processes) => {
                let spared = self.spared();
                ProcessList::of(processes.members().into_iter().filter(|pid| !spared.contains(pid)))
            }
        }
    }

    /// The pidfd of a worker that is a twin: the keeper is not its parent and gets no SIGCHLD for it.
    pub fn twin_handle(&self, worker: u32) -> Option<BorrowedFd<'_>> {
        let ProcessScope::TwinWorker(processes) = &self.scope else { return None };
        (worker == processes.root()).then(|| processes.handle())
    }

    /// The pidfd of a killed process that the keeper waits for.
    pub fn killed_handle(&self) -> Option<BorrowedFd<'_>> {
        self.killed.as_ref().map(AsFd::as_fd)
    }
}
