//! Claims of conversations: calls by which a session's agent asks for a conversation of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use windlass_protocol::agent::ResumeToken;
use windlass_protocol::limits::DEADLINE_MS_MAX;
use windlass_protocol::{CallNo, ErrorCode, TurnNo};

use super::{CallPart, CallTarget, OpenCall, ToolAnswer, ToolCalls, answer_call, error_of};
use crate::agents::{Claim, ClaimVerdict, homes};
use crate::context::Context;
use crate::session::round::Round;

/// The agent of a session, as far as its claims need it.
#[derive(Debug)]
pub(crate) struct ClaimingAgent {
    pub home: PathBuf,
    /// The name of its engine, which is the first part of its tokens.
    pub engine: String,
}

impl ToolCalls {
    /// Whether the session's worker is an agent.
    pub fn is_agent(&self) -> bool {
        self.agent.is_some()
    }

    /// The session's agent asks for a conversation. The answer comes when no other turn has the conversation.
    pub(super) fn claim(&mut self, part: &CallPart, node: &Context, round: &mut Round) {
        let (turn, call) = (part.turn, part.call);
        if self.knows(turn, call) {
            return;
        }
        let now = Instant::now();
        let allowed = part.deadline_ms.unwrap_or(DEADLINE_MS_MAX).min(DEADLINE_MS_MAX);
        let until = now + Duration::from_millis(allowed);
        let (target, name) = (CallTarget::Conversation, part.name.clone());
        self.insert(turn, call, OpenCall { target, name, since: now, until, answered: 0 });
        let claimed = match self.check(part) {
            Ok((token, home)) => self.take(&token, home, turn, call, node),
            Err(refused) => Err(refused),
        };
        match claimed {
            Ok(ClaimVerdict::Granted { changed }) => {
                self.claim_granted(turn, call, changed, node, round);
            }
            Ok(_) => {}
            Err((code, message)) => self.fail(call, &error_of(code, message), None, node, round),
        }
    }

    /// The token that a call claims, and the home of the session's agent.
    fn check(&self, part: &CallPart) -> Result<(ResumeToken, PathBuf), (ErrorCode, String)> {
        let Some(agent) = &self.agent else {
            return Err((ErrorCode::ToolNotFound, "only an agent can claim a conversation".into()));
        };
        let token = ResumeToken::of_claim(&part.name).filter(|_| !part.more && part.offset == 0);
        match token {
            Some(token) if token.engine() == agent.engine => Ok((token, agent.home.clone())),
            _ => {
                let message = format!("{:?} claims no conversation of {}", part.name, agent.engine);
                Err((ErrorCode::BadRequest, message))
            }
        }
    }

    fn take(
        &self,
        token: &ResumeToken,
        home: PathBuf,
        turn: TurnNo,
        call: CallNo,
        node: &Context,
    ) -> Result<ClaimVerdict, (ErrorCode, String)> {
        let session = self.caller.session.clone();
        let verdict = node.host.agents.claim(token, Claim { session, turn, call });
        if verdict == ClaimVerdict::Refused {
            let message = format!("too many turns wait for the conversation {token}");
            return Err((ErrorCode::Overloaded, message));
        }
        // Before the worker can tell anybody the token.
        homes::remember(&node.config, token, &home).map_err(|error| {
            (ErrorCode::ToolFailed, format!("cannot record the conversation {token}: {error}"))
        })?;
        Ok(verdict)
    }

    /// The turn holds the conversation that it claimed.
    pub fn claim_granted(
        &mut self,
        turn: TurnNo,
        call: CallNo,
        changed: bool,
        node: &Context,
        round: &mut Round,
    ) {
        if self.knows(turn, call) {
            let body = format!("{{\"changed\":{changed}}}");
            self.end(call, Ok(body.len()), node, round);
            answer_call(turn, call, ToolAnswer { ok: true, more: false, body: body.into() }, round);
        }
    }
}
