//! How a session's owner comes to be for a session that an earlier node left to its keeper.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass_journal::{Facts, OpenTurn, Recovered, SessionLog};
use windlass_lifecycle::link::NodeHalf;
use windlass_lifecycle::session::{Facts as LifeFacts, FirstTurn, KeeperLoss, WorkerFact};
use windlass_lifecycle::{Event, Session as Machine};
use windlass_protocol::event::EndReason;
use windlass_protocol::link::{Attached, FromKeeper};
use windlass_protocol::{LinkSeq, SessionId, TurnNo};

use super::actor::Actor;
use super::keeper_link::{Filled, KeeperLink};
use super::receipts::WorkspaceFate;
use super::start::{Spec, assemble, original_of};
use super::turns::Turn;
use super::view::Ends;
use crate::context::Context;
use crate::keepers;
use crate::session_dirs;

/// How long a keeper that may have no session yet is waited for before it is taken for one that has.
const BEGUN_WAIT: Duration = Duration::from_secs(2);

/// Takes over a session of an earlier node. A keeper that is gone makes it end, with its receipt,
/// unless it had not begun: then it never was, and may be asked for again.
pub(crate) async fn take_over(context: &Arc<Context>, id: &SessionId) -> Result<(), String> {
    let (log, recovered) =
        context.journal.open_session(id).map_err(|error| format!("journal: {error}"))?;
    let half = || NodeHalf::new(context.epoch, log.facts().last_link);
    let socket = keepers::socket_path(&context.config, id);
    if is_untouched(log.facts()) && !has_begun(&socket, half()).await {
        drop(log);
        return unmake(context, id, &socket);
    }
    let machine = Machine::recover(life_facts(log.facts()));
    let spec = match Spec::of(&log.facts().created) {
        Ok(spec) => spec,
        Err(failure) => {
            // Without its policy nobody knows what it may do: it ends.
            if let Ok(link) = KeeperLink::open(socket.clone(), half(), None) {
                link.peer_pid().into_iter().for_each(keepers::end);
            }
            keepers::remove_socket(&socket);
            context.cgroups.remove_of(id);
            end_without_keeper(context, log, machine, id)?;
            return Err(failure.message);
        }
    };
    context.cgroups.keep(&spec.cgroups);
    match KeeperLink::open(socket.clone(), half(), None) {
        Ok(link) => {
            let (mut actor, handle) = assemble(context, id.clone(), machine, log, link, spec);
            actor.reload(recovered);
            actor.timers.keeper = Some(Instant::now() + context.config.keeper_patience);
            context.admit(handle);
            tokio::spawn(actor.run());
        }
        Err(error) => {
            tracing::warn!(session = %id, %error, "the keeper is gone");
            keepers::remove_socket(&socket);
            context.cgroups.remove_lost(&spec.cgroups);
            end_without_keeper(context, log, machine, id)?;
        }
    }
    Ok(())
}

/// Whether nothing is known of a session but that somebody asked for it.
fn is_untouched(facts: &Facts) -> bool {
    facts.last_link == LinkSeq(0) && facts.last_turn == TurnNo(0)
}

/// Whether a session's keeper was ever told what it keeps. A node says so before anybody hears that
/// the session is there; one that dies earlier leaves a keeper that refuses us and goes, or none.
async fn has_begun(socket: &Path, half: NodeHalf) -> bool {
    let Ok(mut link) = KeeperLink::open(socket.to_owned(), half, None) else { return false };
    let answer = async {
        loop {
            if let Some((message, _)) = link.next_message().ok()? {
                return Some(message);
            }
            if link.fill().await == Filled::Closed {
                return None;
            }
        }
    };
    // The connection is dropped: the keeper's owner makes one of its own.
    match tokio::time::timeout(BEGUN_WAIT, answer).await {
        Ok(answer) => matches!(answer, Some(FromKeeper::Attached(_))),
        Err(_) => true,
    }
}

/// Clears away what was made of a session that has not begun.
fn unmake(context: &Context, id: &SessionId, socket: &Path) -> Result<(), String> {
    tracing::info!(session = %id, "it had not begun when its node died: it is not made");
    keepers::remove_socket(socket);
    context.cgroups.remove_of(id);
    let config = &context.config;
    session_dirs::remove(config, &config.tmp_of(id));
    session_dirs::remove_empty(config, &config.room_of(id));
    // Only an empty one goes.
    let workspace = config.workspace_of(id);
    let _ = session_dirs::state(config)
        .and_then(|state| state.remove_directory(session_dirs::inside(config, &workspace)?));
    context.journal.remove(id).map(drop).map_err(|error| format!("journal: {error}"))
}

impl Actor {
    /// The open turns of an earlier node. The deadline of the running one is counted from its start, which
    /// only the keeper knows (see `rearm`).
    fn reload(&mut self, recovered: Recovered) {
        self.turns.had_others();
        let running = self.machine.current();
        let code: HashMap<TurnNo, Bytes> = recovered.code.into_iter().collect();
        for open in self.log.facts().open_turns.clone() {
            if Some(open.number) == running && open.interrupt.is_some() {
                let grace = Duration::from_millis(self.interrupt_grace_ms);
                self.timers.grace = Some((open.number, Instant::now() + grace));
            }
            let code = code.get(&open.number).cloned().unwrap_or_default();
            let mut turn = Turn::new(open.id, open.number, code, open.deadline_ms);
            turn.output = Ends::elsewhere(open.output_bytes);
            turn.displays = open.displays;
            turn.stdin_wait = open.stdin_wait;
            turn.disk_full = open.disk_full;
            self.turns.insert(turn);
        }
    }

    /// Whether an earlier node gave the keeper this turn, although the journal does not tell: the disk was
    /// full when the turn before it ended. What became of the turn is among the events that the keeper
    /// held; it must not be given again.
    pub(super) fn keeper_was_given(&self, turn: TurnNo) -> bool {
        self.attached.as_ref().is_some_and(|attached| turn <= attached.last_turn)
    }

    /// Goes on with a turn that the keeper was given by an earlier node.
    pub(super) fn goes_on(&mut self, turn: TurnNo) {
        if let Some(given) = self.turns.get_mut(turn) {
            given.code = Bytes::new();
        }
        if let Some(attached) = self.attached.take() {
            self.rearm(&attached);
            self.attached = Some(attached);
        }
    }

    /// The keeper has said how long the turn that it runs has run: the rest of its deadline is left, as
    /// if no node had been replaced. A keeper that does not say gives it the whole deadline again.
    pub(super) fn rearm(&mut self, attached: &Attached) {
        let Some(turn) = attached.running.filter(|turn| self.machine.current() == Some(*turn))
        else {
            return;
        };
        let is_stopped = self.timers.grace.is_some_and(|(of, _)| of == turn);
        let own_ms = self.turns.get(turn).and_then(|running| running.deadline_ms);
        if let Some(deadline) = self.deadlines.of(own_ms).filter(|_| !is_stopped) {
            let passed = Duration::from_millis(attached.running_ms.unwrap_or(0));
            let left = deadline.saturating_sub(passed);
            self.timers.deadline = Some((turn, Instant::now() + left));
        }
    }
}

fn life_facts(facts: &Facts) -> LifeFacts {
    let first = match facts.open_turns.first() {
        Some(OpenTurn { interrupt: Some(cause), .. }) => FirstTurn::Interrupting(*cause),
        Some(OpenTurn { stdin_wait: Some(_), .. }) => FirstTurn::AwaitingInput,
        Some(_) | None => FirstTurn::Running,
    };
    let worker = match (facts.worker.is_none(), facts.worker_pid) {
        (true, _) => WorkerFact::Starting,
        (false, Some(_)) => WorkerFact::Up,
        (false, None) => WorkerFact::Gone,
    };
    let open = facts.open_turns.iter().map(|turn| turn.number).collect();
    // Each end is followed by the wish for another worker.
    let restarts = facts.restarts.saturating_add(facts.ended_since_ready);
    LifeFacts { open, first, worker, restarts }
}

/// Writes the end of a session whose keeper is gone: its open turns are lost, and so is it.
fn end_without_keeper(
    context: &Context,
    mut log: SessionLog,
    machine: Machine,
    id: &SessionId,
) -> Result<(), String> {
    let (_, effects) = machine.step(Event::KeeperLost(KeeperLoss::Died));
    // A record that cannot be read says nothing of an original.
    let original = original_of(log.facts());
    let made_at_ms = log.facts().created.created_at_ms;
    let reason = EndReason::KeeperLost;
    let workspace = WorkspaceFate::of(&context.journal, original, made_at_ms, reason);
    let records = super::recovery::records_of_loss(id, &effects, workspace);
    log.append(records).map(|_| ()).map_err(|error| format!("journal: {error}"))
}
