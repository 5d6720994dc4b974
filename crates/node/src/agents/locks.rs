//! Decides which turn holds which conversation. Pure: no clock, no I/O.
//!
//! - A conversation has at most one holder: a turn. The holder keeps it until the turn ends.
//! - Other turns wait in the order of their claims.
//! - Until the table is open, nothing is granted.

use std::collections::{HashMap, VecDeque};

use windlass_protocol::agent::ResumeToken;
use windlass_protocol::{CallNo, SessionId, TurnNo};

/// Maximum number of conversations that one turn holds or waits for.
const CLAIMS_OF_TURN_MAX: usize = 4;

/// Maximum number of turns that wait for one conversation.
const WAITING_MAX: usize = 256;

/// Maximum number of conversations whose last user is remembered. A forgotten one counts as used by another.
const REMEMBERED_MAX: usize = 4096;

/// A turn's request for a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub session: SessionId,
    pub turn: TurnNo,
    /// The tool call that waits for the answer.
    pub call: CallNo,
}

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimVerdict {
    /// `changed`: another session may have used the conversation since this session did.
    Granted {
        changed: bool,
    },
    Waiting,
    /// The turn has too many claims, or too many turns wait.
    Refused,
}

/// A claim that waited and is granted now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Grant {
    pub claim: Claim,
    pub changed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct TokenLocks {
    tokens: HashMap<ResumeToken, TokenState>,
    is_open: bool,
}

#[derive(Debug, Default)]
struct TokenState {
    holder: Option<(SessionId, TurnNo)>,
    waiting: VecDeque<Claim>,
    last_user: Option<SessionId>,
}

impl TokenLocks {
    pub fn claim(&mut self, token: &ResumeToken, claim: Claim) -> ClaimVerdict {
        if self.claims_of(&claim.session) >= CLAIMS_OF_TURN_MAX {
            return ClaimVerdict::Refused;
        }
        self.forget_some();
        let is_open = self.is_open;
        let conversation = self.tokens.entry(token.clone()).or_default();
        if conversation.is_held_by(&claim.session, claim.turn) {
            return ClaimVerdict::Granted { changed: false };
        }
        if is_open && conversation.holder.is_none() {
            return ClaimVerdict::Granted { changed: conversation.give(&claim) };
        }
        if conversation.waiting.len() >= WAITING_MAX {
            return ClaimVerdict::Refused;
        }
        conversation.waiting.push_back(claim);
        ClaimVerdict::Waiting
    }

    pub fn hold(&mut self, token: &ResumeToken, session: &SessionId, turn: TurnNo) {
        let conversation = self.tokens.entry(token.clone()).or_default();
        conversation.holder = Some((session.clone(), turn));
        conversation.last_user = Some(session.clone());
    }

    pub fn open(&mut self) -> Vec<Grant> {
        self.is_open = true;
        self.tokens.values_mut().filter_map(TokenState::give_next).collect()
    }

    pub fn release(&mut self, session: &SessionId, turn: TurnNo) -> Vec<Grant> {
        let mut grants = Vec::new();
        for conversation in self.tokens.values_mut() {
            conversation.waiting.retain(|claim| claim.session != *session || claim.turn != turn);
            if conversation.is_held_by(session, turn) {
                conversation.holder = None;
                if self.is_open {
                    grants.extend(conversation.give_next());
                }
            }
        }
        grants
    }

    pub fn cancel(&mut self, session: &SessionId, turn: TurnNo, call: CallNo) {
        let is_it =
            |claim: &Claim| (&claim.session, claim.turn, claim.call) == (session, turn, call);
        for conversation in self.tokens.values_mut() {
            conversation.waiting.retain(|claim| !is_it(claim));
        }
    }

    fn claims_of(&self, session: &SessionId) -> usize {
        let counts = self.tokens.values().map(|conversation| {
            let holds = conversation.holder.as_ref().is_some_and(|(holder, _)| holder == session);
            let waits = conversation.waiting.iter().filter(|claim| claim.session == *session);
            usize::from(holds) + waits.count()
        });
        counts.sum()
    }

    fn forget_some(&mut self) {
        if self.tokens.len() >= REMEMBERED_MAX {
            self.tokens.retain(|_, known| known.holder.is_some() || !known.waiting.is_empty());
        }
    }
}

impl TokenState {
    fn is_held_by(&self, session: &SessionId, turn: TurnNo) -> bool {
        self.holder.as_ref().is_some_and(|holder| *holder == (session.clone(), turn))
    }

    /// Gives the conversation to a turn. Returns whether another session may have used it.
    fn give(&mut self, claim: &Claim) -> bool {
        self.holder = Some((claim.session.clone(), claim.turn));
        self.last_user.replace(claim.session.clone()).as_ref() != Some(&claim.session)
    }

    fn give_next(&mut self) -> Option<Grant> {
        if self.holder.is_some() {
            return None;
        }
        let claim = self.waiting.pop_front()?;
        let changed = self.give(&claim);
        Some(Grant { claim, changed })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn session(name: &str) -> SessionId {
        SessionId::parse(name).unwrap()
    }

    /// Runs steps such as `a1 T` (turn 1 of session a claims T), `a1 end`, `a1 give-up`, `open` and `a1 held T`.
    fn check(script: &[(&str, &str)]) {
        let mut locks = TokenLocks::default();
        for (step, expected) in script {
            let words: Vec<&str> = step.split(' ').collect();
            let grants = |grants: Vec<Grant>| {
                let mut text = String::new();
                for Grant { claim, changed } in grants {
                    let changed = if changed { "*" } else { "" };
                    write!(text, "{}{}{changed} ", claim.session, claim.turn).unwrap();
                }
                text.trim_end().to_owned()
            };
            let of = |name: &str| (session(&name[..1]), TurnNo(name[1..].parse().unwrap()));
            let seen = match words[..] {
                ["open"] => grants(locks.open()),
                [name, "end"] => {
                    let (session, turn) = of(name);
                    grants(locks.release(&session, turn))
                }
                [name, "give-up"] => {
                    let (session, turn) = of(name);
                    locks.cancel(&session, turn, CallNo(1));
                    String::new()
                }
                [name, "held", token] => {
                    let (session, turn) = of(name);
                    locks.hold(&ResumeToken::new("e", token).unwrap(), &session, turn);
                    String::new()
                }
                [name, token] => {
                    let (session, turn) = of(name);
                    let token = ResumeToken::new("e", token).unwrap();
                    match locks.claim(&token, Claim { session, turn, call: CallNo(1) }) {
                        ClaimVerdict::Granted { changed: true } => "yes*".to_owned(),
                        ClaimVerdict::Granted { changed: false } => "yes".to_owned(),
                        ClaimVerdict::Waiting => "wait".to_owned(),
                        ClaimVerdict::Refused => "refused".to_owned(),
                    }
                }
                _ => panic!("{step}"),
            };
            assert_eq!(seen, *expected, "{step}");
        }
    }

    #[test]
    fn one_turn_holds_a_conversation_and_the_others_wait_in_order() {
        check(&[
            ("open", ""),
            ("a1 T", "yes*"),
            ("a1 T", "yes"),
            ("b1 T", "wait"),
            ("c1 U", "yes*"),
            ("d1 T", "wait"),
            ("b9 end", ""),
            ("a1 end", "b1*"),
            ("b1 give-up", ""),
            ("b1 end", "d1*"),
            ("d1 end", ""),
            ("d2 T", "yes"),
            ("d2 end", ""),
            ("a2 T", "yes*"),
        ]);
    }

    #[test]
    fn a_waiting_turn_that_ends_or_gives_up_is_passed_over() {
        check(&[
            ("open", ""),
            ("a1 T", "yes*"),
            ("b1 T", "wait"),
            ("c1 T", "wait"),
            ("d1 T", "wait"),
            ("b1 end", ""),
            ("c1 give-up", ""),
            ("a1 end", "d1*"),
        ]);
    }

    #[test]
    fn nothing_is_granted_until_the_holders_of_the_earlier_node_are_known() {
        check(&[
            ("b1 T", "wait"),
            ("c1 U", "wait"),
            ("a1 held T", ""),
            ("a1 T", "yes"),
            ("open", "c1*"),
            ("a1 end", "b1*"),
        ]);
    }

    #[test]
    fn a_turn_has_few_claims() {
        check(&[
            ("open", ""),
            ("a1 A", "yes*"),
            ("a1 B", "yes*"),
            ("a1 C", "yes*"),
            ("a1 D", "yes*"),
            ("a1 E", "refused"),
            ("a1 end", ""),
            ("a2 E", "yes*"),
        ]);
    }
}
