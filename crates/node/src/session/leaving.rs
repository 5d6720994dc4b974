//! How a session's owner leaves: the session is over, or lives on without this node.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;
use windlass_journal::NewEvent;
use windlass_lifecycle::SessionEffect;
use windlass_lifecycle::session::Loss;
use windlass_protocol::SessionId;
use windlass_protocol::event::{EndReason, EventKind, Usage};
use windlass_protocol::link::FromKeeper;

use super::actor::{Actor, Leave};
use super::journal_side::OWED_RETRY;
use super::keeper_link::Filled;
use super::receipts::WorkspaceFate;
use super::requests::answer;
use super::{effects, receipts};
use crate::clock::now_ms;
use crate::context::Context;
use crate::session_dirs;
use crate::{disk, keepers};

/// How long a keeper may take to end beyond the grace it was given.
const SEE_OFF: Duration = Duration::from_secs(5);

pub(super) async fn leave(mut actor: Actor, left: Leave) {
    // For whoever waits it is as if the wait had passed.
    for (turn, reply) in actor.queue.take_all_waiters() {
        answer(reply, actor.snapshot(turn));
    }
    match left {
        Leave::Ended => see_off(&mut actor).await,
        Leave::Released(reply) => release(&mut actor, reply),
    }
}

/// The session is over: its keeper goes, with everything it holds, before anybody is told.
async fn see_off(actor: &mut Actor) {
    let grace = Duration::from_millis(actor.life.closing_grace_ms());
    let until = Instant::now() + grace + SEE_OFF;
    let gone = tokio::time::timeout_at(until.into(), until_hung_up(actor)).await;
    if gone.is_err() {
        actor.end_keeper();
    }
    keepers::remove_socket(&actor.keeper.link.path);
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
    actor.context.forget(&actor.id);
    // Of those that end at the same moment, the last to be forgotten finds the family empty.
    if let Some(room) = actor.fork.first_room() {
        let context = actor.context.clone();
        let _ = tokio::task::spawn_blocking(move || disk::settle(&context, &room)).await;
    }
    actor.life.answer_closers();
    if had_placeholders {
        let context = actor.context.clone();
        drop(tokio::task::spawn_blocking(move || context.host.placeholders.stock_up()));
    }
}

/// Answers for a session that is over while its end is only owed to the journal: until there is room, or this
/// node stops and the next one finds the keeper gone.
async fn until_recorded(actor: &mut Actor) -> Option<oneshot::Sender<()>> {
    while !actor.journal.is_settled() {
        let asked = tokio::time::timeout(OWED_RETRY, actor.inbox.recv()).await;
        match asked.map(|request| request.map(|request| actor.serve(request))) {
            Err(_) => {
                let written = actor.journal.write_owed(&mut actor.keeper.link.half);
                actor.count_failed(written);
                actor.publish();
            }
            Ok(None) => return None,
            Ok(Some(Some(Leave::Released(reply)))) => return reply,
            Ok(Some(_)) => actor.life.answer_closers(),
        }
    }
    None
}

/// Removes what was made for the session beside its journal and workspace.
async fn remove_belongings(actor: &mut Actor) {
    let (dirs, tmp) = (std::mem::take(&mut actor.life.cgroups), family_tmp(actor));
    let room = actor.fork.first_room();
    let has_placeholders = actor.context.host.placeholders.are_needed_by(&actor.id);
    if dirs.is_empty() && tmp.is_none() && room.is_none() && !has_placeholders {
        return;
    }
    let (context, id) = (actor.context.clone(), actor.id.clone());
    let keeper_lost = actor.machine.end_reason() == Some(EndReason::KeeperLost);
    let remove = move || {
        if keeper_lost {
            context.host.cgroups.remove_lost(&dirs);
        } else {
            context.host.cgroups.remove(&dirs);
        }
        context.host.placeholders.release(&id);
        if let Some(room) = room {
            session_dirs::remove_empty(&context.config, &room);
        }
        if let Some(tmp) = tmp {
            session_dirs::remove(&context.config, &tmp);
        }
    };
    // It fails only with the runtime.
    let _ = tokio::task::spawn_blocking(remove).await;
}

/// The temporary directory that goes with this session: the family's, when this is the last of it.
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
            Filled::Closed => return,
            Filled::Room => {}
            Filled::Some => {
                // What a session says after its end is nobody's. But a keeper that answers
                // only now has not been told to stop.
                while let Ok(Some((message, _))) = actor.keeper.link.next_message() {
                    if let FromKeeper::Attached(attached) = message {
                        actor.greet(&attached);
                    }
                }
            }
        }
    }
}

/// Leaves a session that lives on without this node: its turn runs on.
fn release(actor: &mut Actor, reply: Option<oneshot::Sender<()>>) {
    // There may be room again for what is owed; if not, the keeper has it.
    let written = actor.journal.write_owed(&mut actor.keeper.link.half);
    actor.count_failed(written);
    actor.keeper.link.acknowledge_all();
    actor.keeper.flush();
    if actor.keeper.link.is_flushed() {
        // The keeper reads what lies in its socket, whoever goes.
        for given in actor.keeper.take_confirmations() {
            answer(given.reply, actor.snapshot(given.turn));
        }
    }
    actor.context.leave(&actor.id);
    if let Some(reply) = reply {
        let _ = reply.send(());
    }
}

/// The records of a keeper's death when no owner is there to write them.
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
                let error = code.map(|code| effects::explain(code, None));
                let usage = Usage::default();
                Some(record(Some(turn), EventKind::TurnEnded { outcome, error, usage, receipt }))
            }
            SessionEffect::End { reason } => {
                let receipt = receipts::session_ended(id, reason, workspace);
                Some(record(None, EventKind::SessionEnded { reason, message: None, receipt }))
            }
            _ => None,
        })
        .collect()
}
