//! Takes over a session that an earlier node left to its keeper, and starts an owner for it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use windlass_journal::{OpenTurn, SessionFacts, SessionLog};
use windlass_lifecycle::link::NodeHalf;
use windlass_lifecycle::session::{FirstTurn, KeeperLoss, RecoveryFacts, WorkerFact};
use windlass_lifecycle::{SessionEvent, SessionMachine};
use windlass_protocol::event::EndReason;
use windlass_protocol::link::FromKeeper;
use windlass_protocol::{Epoch, LinkSeq, SessionId, TurnNo};

use super::keeper_link::{KeeperLink, LinkActivity};
use super::receipts::WorkspaceFate;
use super::spec::{Spec, original_of};
use super::start::assemble;
use super::trace::SessionTrace;
use crate::audit::SessionAudit;
use crate::context::Context;
use crate::keepers;
use crate::session_dirs;

/// How long to wait for the answer of a keeper that may have no session. A keeper that does not answer in
/// time counts as one with a session.
const BEGUN_WAIT: Duration = Duration::from_secs(2);

/// Takes over a session of an earlier node. If the keeper is gone, the session ends with a receipt. If the
/// keeper never got its launch, the session is removed as if it was never made, and a client can make it
/// again.
pub(crate) async fn take_over(context: &Arc<Context>, id: &SessionId) -> Result<(), String> {
    let (mut log, recovered) =
        context.journal.open_session(id).map_err(|error| format!("journal: {error}"))?;
    let epoch = raised_epoch(log.facts().epoch, context.identity.epoch);
    let last_link = log.facts().last_link;
    let half = || NodeHalf::new(epoch, last_link);
    let socket = keepers::socket_path(&context.config, id);
    if is_untouched(log.facts()) && !has_begun(&socket, half()).await {
        let is_copy = Spec::of(&log.facts().created).is_ok_and(|spec| spec.copied_from.is_some());
        drop(log);
        return unmake(context, id, &socket, is_copy);
    }
    let machine = SessionMachine::recover(recovery_facts(log.facts()));
    let spec = match Spec::of(&log.facts().created) {
        Ok(spec) => spec,
        Err(failure) => {
            // The policy is unknown, so the session ends.
            if let Ok(link) = KeeperLink::open(socket.clone(), half(), None) {
                link.peer_pid().into_iter().for_each(keepers::end);
            }
            keepers::remove_socket(&socket);
            context.host.cgroups.remove_of(id);
            end_without_keeper(context, log, machine, id)?;
            return Err(failure.message);
        }
    };
    context.host.cgroups.keep(&spec.cgroups);
    hold_conversations(context, log.facts());
    log.set_epoch(epoch);
    match KeeperLink::open(socket.clone(), half(), None) {
        Ok(link) => {
            let (mut actor, handle) = assemble(context, machine, log, link, spec);
            let running = actor.machine.current();
            let open = &actor.journal.facts().open_turns;
            actor.queue.reload(open, recovered, running);
            // A client may read the state of the session before its keeper answers.
            actor.publish();
            context.admit(handle);
            tokio::spawn(actor.run());
        }
        Err(error) => {
            tracing::warn!(session = %id, %error, "the keeper is gone; ending the session");
            keepers::remove_socket(&socket);
            context.host.cgroups.remove_lost(&spec.cgroups);
            for turn in &log.facts().open_turns {
                context.host.agents.release(id, turn.number, &context.sessions);
            }
            end_without_keeper(context, log, machine, id)?;
        }
    }
    Ok(())
}

/// The epoch by which this node owns a session of an earlier node. It is above the epoch of every earlier owner: the
/// start number of this node is above that of each node that was here before, and no epoch is above the start number
/// of its owner, unless the journal says so.
fn raised_epoch(recorded: Epoch, node: Epoch) -> Epoch {
    recorded.next().max(node)
}

/// Whether the journal has only the session's creation: no event of its keeper, and no turn.
fn is_untouched(facts: &SessionFacts) -> bool {
    facts.last_link == LinkSeq(0) && facts.last_turn == TurnNo(0)
}

/// Whether a session's keeper got its launch. A node sends the launch before it answers the client. If the
/// node died before that, the keeper is gone, or refuses the attach and exits.
async fn has_begun(socket: &Path, half: NodeHalf) -> bool {
    let Ok(mut link) = KeeperLink::open(socket.to_owned(), half, None) else { return false };
    let answer = async {
        loop {
            if let Some((message, _)) = link.next_message().ok()? {
                return Some(message);
            }
            if link.fill().await == LinkActivity::Closed {
                return None;
            }
        }
    };
    // This connection is dropped; the session's owner opens another.
    match tokio::time::timeout(BEGUN_WAIT, answer).await {
        Ok(answer) => matches!(answer, Some(FromKeeper::Attached(_))),
        Err(_) => true,
    }
}

/// Removes what was made for a session whose keeper never got its launch.
fn unmake(context: &Context, id: &SessionId, socket: &Path, is_copy: bool) -> Result<(), String> {
    tracing::info!(session = %id, "the session had not begun when its node died; removing it");
    keepers::remove_socket(socket);
    context.host.cgroups.remove_of(id);
    let config = &context.config;
    session_dirs::remove(config, &config.tmp_of(id));
    session_dirs::remove_empty(config, &config.family_dir_of(id));
    // An earlier release made this symlink to the directory of a pooled worker.
    session_dirs::unlink(config, id);
    // Only an empty workspace or a copy is removed.
    let workspace = config.workspace_of(id);
    if is_copy {
        session_dirs::remove(config, &workspace);
    }
    let _ = session_dirs::state(config)
        .and_then(|state| state.remove_directory(session_dirs::inside(config, &workspace)?));
    context.journal.remove(id).map(drop).map_err(|error| format!("journal: {error}"))
}

/// Notes the conversations that the session's running turn holds.
fn hold_conversations(context: &Context, facts: &SessionFacts) {
    for turn in &facts.open_turns {
        for claim in turn.claims.iter().filter(|claim| claim.granted) {
            context.host.agents.hold(&claim.token, &facts.created.id, turn.number);
        }
    }
}

fn recovery_facts(facts: &SessionFacts) -> RecoveryFacts {
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
    // The machine asks for a restart after each end of a worker.
    let restarts = facts.restarts.saturating_add(facts.ended_since_ready);
    // A record that cannot be read has ended the session before this is called.
    let is_twin = original_of(facts).is_some();
    RecoveryFacts { open, first, worker, restarts, is_twin }
}

/// Writes the end of a session whose keeper is gone: its open turns and the session are lost.
fn end_without_keeper(
    context: &Context,
    mut log: SessionLog,
    machine: SessionMachine,
    id: &SessionId,
) -> Result<(), String> {
    let (_, effects) = machine.step(SessionEvent::KeeperLost(KeeperLoss::Died));
    // If the record cannot be read, the session counts as no twin.
    let original = original_of(log.facts());
    let made_at_ms = log.facts().created.created_at_ms;
    let reason = EndReason::KeeperLost;
    let workspace = WorkspaceFate::of(&context.journal, original, made_at_ms, reason);
    let records = super::leaving::records_of_loss(id, &effects, workspace);
    SessionAudit::default().note(&context.serving.audit, id, &records);
    let mut trace =
        SessionTrace::of_record(context.serving.telemetry.as_ref(), &log.facts().created);
    let traced = trace.as_ref().map(|trace| trace.read(&records));
    log.append(records).map_err(|error| format!("journal: {error}"))?;
    if let (Some(trace), Some(traced)) = (&mut trace, traced) {
        trace.report(traced);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_above_every_earlier_one() {
        // (the journal's epoch, the node's start number, the epoch of the new owner)
        for (recorded, node, raised) in [(1, 1, 2), (1, 2, 2), (0, 57, 57), (6, 2, 7), (3, 9, 9)] {
            assert_eq!(raised_epoch(Epoch(recorded), Epoch(node)), Epoch(raised));
        }
    }
}
