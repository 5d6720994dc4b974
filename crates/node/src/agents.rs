//! Agents of all sessions: which turn holds which conversation ([`locks`]), and where the engines keep their files
//! ([`homes`]).
//!
//! An agent's worker claims its conversation with a tool call that the node answers (`session::calls`). The call is
//! in the journal before it is answered, so the next node knows the holder.

pub(crate) mod homes;
mod locks;

use std::sync::{Mutex, MutexGuard};

use windlass_protocol::agent::ResumeToken;
use windlass_protocol::{CallNo, SessionId, TurnNo};

use crate::directory::SessionDirectory;
use crate::session::Request;

pub(crate) use locks::{Claim, ClaimVerdict};
use locks::{Grant, TokenLocks};

/// The conversations of all sessions.
#[derive(Debug, Default)]
pub(crate) struct Agents {
    locks: Mutex<TokenLocks>,
}

impl Agents {
    /// A turn wants a conversation. If it must wait, the session's owner gets [`Request::ClaimGranted`] later.
    pub fn claim(&self, token: &ResumeToken, claim: Claim) -> ClaimVerdict {
        self.lock().claim(token, claim)
    }

    /// Notes that a turn of an earlier node holds a conversation.
    pub fn hold(&self, token: &ResumeToken, session: &SessionId, turn: TurnNo) {
        self.lock().hold(token, session, turn);
    }

    /// Grants conversations from now on: all holders of the earlier node are known.
    pub fn open(&self, sessions: &SessionDirectory) {
        tell(self.lock().open(), sessions);
    }

    /// A turn has ended.
    pub fn release(&self, session: &SessionId, turn: TurnNo, sessions: &SessionDirectory) {
        tell(self.lock().release(session, turn), sessions);
    }

    /// A turn gives up its wait for a conversation.
    pub fn cancel(&self, session: &SessionId, turn: TurnNo, call: CallNo) {
        self.lock().cancel(session, turn, call);
    }

    fn lock(&self) -> MutexGuard<'_, TokenLocks> {
        self.locks.lock().expect("no holder of this lock can panic")
    }
}

/// Tells the owners of sessions that their claims are granted. Never waits: an inbox may be full.
fn tell(grants: Vec<Grant>, sessions: &SessionDirectory) {
    for Grant { claim, changed } in grants {
        // A session that is gone has no turn, and its owner has released its conversations.
        let Some(handle) = sessions.find(&claim.session) else { continue };
        tokio::spawn(async move {
            let Claim { turn, call, .. } = claim;
            let _ = handle.send(Request::ClaimGranted { turn, call, changed }).await;
        });
    }
}
