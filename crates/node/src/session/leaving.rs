//! How a session's owner task ends: the session has ended, or it goes on without this node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;
use windlass_journal::NewEvent;
use windlass_lifecycle::SessionEffect;
use windlass_lifecycle::session::Loss;
use windlass_procs::cgroup::CgroupUsage;
use windlass_protocol::SessionId;
use windlass_protocol::event::{EndReason, EventKind, Usage};
use windlass_protocol::link::FromKeeper;
use windlass_telemetry::Fact;

use super::actor::{Actor, LeaveReason};
use super::journal_side::OWED_RETRY;
use super::keeper_link::LinkActivity;
use super::receipts::WorkspaceFate;
use super::turns::TurnEnd;
use super::{answer, children, limits, receipts};
use crate::clock::now_ms;
use crate::context::Context;
use crate::session_dirs;
use crate::{disk, keepers};

/// How long a keeper may take to end beyond the grace it was given.
const SEE_OFF: Duration = Duration::from_secs(5);

pub(super) async fn leave(mut actor: Actor, left: LeaveReason) {
    // Waiting requests get the turn as it is now, as if their wait had timed out.
    for (turn, reply) in actor.queue.take_all_waiters() {
        answer(reply, actor.snapshot(turn));
    }
    match left {
        LeaveReason::Ended => see_off(&mut actor).await,
        LeaveReason::Released(reply) => release(&mut actor, reply),
    }
}

/// The session has ended: waits for its keeper to exit and removes its resources, before the client is
/// answered.
async fn see_off(actor: &mut Actor) {
    let grace = Duration::from_millis(actor.life.closing_grace_ms());
    let until = Instant::now() + grace + SEE_OFF;
    let gone = tokio::time::timeout_at(until.into(), until_hung_up(actor)).await;
    if gone.is_err() {
        actor.end_keeper();
    }
    keepers::remove_socket(&actor.keeper.link.path);
    // First of all: children must not go on while the end cannot be written, or without the rules of their parent.
    children::end_with(&actor.context, &actor.id).await;
    let had_placeholders = actor.context.host.placeholders.are_needed_by(&actor.id);
    remove_belongings(actor).await;
    if !actor.journal.is_settled() {
        actor.life.answer_closers();
        if let Some(released) = until_recorded(actor).await {
            actor.context.leave(&actor.id);
            let _ = released.send(());
            return;
        }
    }
    let family = actor.context.sessions.find(&actor.id).map(|handle| handle.family);
    actor.context.forget(&actor.id);
    release_user_id(&actor.context, family).await;
    // If several sessions of a family end at the same time, the last one that is forgotten finds the family
    // empty and removes its directory.
    if let Some(room) = actor.fork.first_room() {
        let context = actor.context.clone();
        let _ = tokio::task::spawn_blocking(move || disk::clean_family(&context, &room)).await;
    }
    actor.life.answer_closers();
    if had_placeholders {
        let context = actor.context.clone();
        drop(tokio::task::spawn_blocking(move || context.host.placeholders.stock_up()));
    }
}

/// Serves requests for an ended session whose end is not in the journal yet, because the disk is full.
/// Lasts until the end is written, or until this node stops; the next node then finds the keeper gone.
async fn until_recorded(actor: &mut Actor) -> Option<oneshot::Sender<()>> {
    while !actor.journal.is_settled() {
        let received = tokio::time::timeout(OWED_RETRY, actor.inbox.recv()).await;
        match received.map(|request| request.map(|request| actor.serve(request))) {
            Err(_) => {
                let written = actor.journal.write_owed(&mut actor.keeper.link.half);
                actor.count_failed(written);
                actor.publish();
            }
            Ok(None) => return None,
            Ok(Some(Some(LeaveReason::Released(reply)))) => return reply,
            Ok(Some(_)) => actor.life.answer_closers(),
        }
    }
    None
}

/// Removes what was made for the session, except its journal and workspace.
async fn remove_belongings(actor: &mut Actor) {
    let (dirs, tmp) = (std::mem::take(&mut actor.life.cgroups), family_tmp(actor));
    let room = actor.fork.first_room();
    let has_placeholders = actor.context.host.placeholders.are_needed_by(&actor.id);
    if dirs.is_empty() && tmp.is_none() && room.is_none() && !has_placeholders {
        return;
    }
    let (context, id) = (actor.context.clone(), actor.id.clone());
    let measured = context.sessions.find(&id).map(|handle| handle.cgroups);
    let keeper_lost = actor.machine.end_reason() == Some(EndReason::KeeperLost);
    let remove = move || {
        if let (Some(measured), Some(cpu_time)) = (measured, CgroupUsage::of(&dirs).cpu_time) {
            context.serving.usage.count_ended(&id, cpu_time, &measured);
        }
        if keeper_lost {
            context.host.cgroups.remove_lost(&dirs);
        } else {
            context.host.cgroups.remove(&dirs);
        }
        context.host.placeholders.release(&id);
        remove_secret_rules(&context, &id);
        if let Some(room) = room {
            session_dirs::remove_empty(&context.config, &room);
        }
        if let Some(tmp) = tmp {
            session_dirs::remove(&context.config, &tmp);
        }
    };
    // The join fails only when the runtime stops.
    let _ = tokio::task::spawn_blocking(remove).await;
}

/// Frees the user id of a family with its last session, which has been forgotten.
async fn release_user_id(context: &Arc<Context>, family: Option<SessionId>) {
    let Some(family) = family.filter(|_| context.host.user_ids.are_in_use()) else { return };
    if context.sessions.handles().iter().any(|one| one.family == family) {
        return;
    }
    let context = context.clone();
    // The join fails only when the runtime stops.
    let _ = tokio::task::spawn_blocking(move || context.host.user_ids.release(&family)).await;
}

/// Removes the changed secret rules of a family with its last session.
fn remove_secret_rules(context: &Context, id: &SessionId) {
    let live = context.sessions.handles();
    let own = live.iter().find(|one| one.id == *id).map(|one| &one.family);
    let family = own.unwrap_or(id);
    if !live.iter().any(|one| one.id != *id && one.family == *family) {
        context.host.secrets.live_rules.remove(family);
    }
}

/// The temporary directory to remove: the family's, if this is the last live session of the family.
fn family_tmp(actor: &mut Actor) -> Option<PathBuf> {
    let context: &Context = &actor.context;
    let handle = context.sessions.find(&actor.id)?;
    let others = context.sessions.handles();
    if others.iter().any(|other| other.family == handle.family && other.id != actor.id) {
        return None;
    }
    let of_family = context.config.tmp_of(&handle.family);
    Some(actor.life.tmp.take().unwrap_or(of_family))
}

async fn until_hung_up(actor: &mut Actor) {
    loop {
        actor.keeper.flush();
        actor.keeper.link.acknowledge_all();
        match actor.keeper.link.fill().await {
            LinkActivity::Closed => return,
            LinkActivity::Writable => {}
            LinkActivity::Received => {
                // Messages after the session's end are dropped. But a keeper that answers the attach only now
                // has not got the shutdown command yet.
                while let Ok(Some((message, _))) = actor.keeper.link.next_message() {
                    if let FromKeeper::Attached(attached) = message {
                        actor.greet(&attached);
                    }
                }
            }
        }
    }
}

/// Leaves a session that goes on without this node. Its turn keeps running.
fn release(actor: &mut Actor, reply: Option<oneshot::Sender<()>>) {
    // Try once more to write the owed records. If that fails, the keeper still holds them.
    let written = actor.journal.write_owed(&mut actor.keeper.link.half);
    actor.count_failed(written);
    actor.keeper.link.acknowledge_all();
    actor.keeper.flush();
    if actor.keeper.link.is_flushed() {
        // The keeper reads its socket also after this node has gone, so the input counts as given.
        for given in actor.keeper.take_confirmations() {
            answer(given.reply, actor.snapshot(given.turn));
        }
    }
    if let Some(trace) = &mut actor.journal.trace {
        trace.report_now(Fact::Released);
    }
    actor.context.leave(&actor.id);
    if let Some(reply) = reply {
        let _ = reply.send(());
    }
}

/// The records of a keeper's death, for a session without an owner.
pub(super) fn records_of_loss(
    id: &SessionId,
    effects: &[SessionEffect],
    workspace: WorkspaceFate,
) -> Vec<NewEvent> {
    let record =
        |turn, kind| NewEvent { at_ms: now_ms(), turn, link: None, kind, body: Bytes::new() };
    effects
        .iter()
        .filter_map(|effect| match *effect {
            SessionEffect::Finish { turn, outcome, code, loss } => {
                let receipt = (loss == Loss::State).then(|| receipts::state_lost(id));
                let error = code.map(|code| limits::explain(code, None));
                let usage = Usage::default();
                let (refusal, exit_code, value) = (None, None, None);
                let end = TurnEnd { outcome, error, usage, receipt, refusal, exit_code, value };
                Some(record(Some(turn), end.into_event()))
            }
            SessionEffect::End { reason } => {
                let receipt = receipts::session_ended(id, reason, workspace);
                Some(record(None, EventKind::SessionEnded { reason, message: None, receipt }))
            }
            _ => None,
        })
        .collect()
}
