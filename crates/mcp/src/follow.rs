//! A call that runs or follows a turn: submits the turn, waits as long as the call may, reports
//! progress, asks for input and builds the answer. A cancelled call stops its turn. A call whose
//! client is gone leaves the turn running.

use std::future::Future;
use std::time::{Duration, Instant};

use rmcp::model::{CallToolResponse, InputResponses};
use windlass_client::{Client, fresh_turn_id};
use windlass_protocol::api::{StdinWait, SubmitTurn, Turn, TurnQuery, TurnState};
use windlass_protocol::{ErrorCode, SessionId, TurnId};

use crate::call::ClientCall;
use crate::door::Door;
use crate::fault::Fault;
use crate::input::{self, AskOutcome, UserAnswer};
use crate::output::{ALL_SEEN, OutputPart, OutputStart};
use crate::reply::{TurnReply, output_link};
use crate::{images, sessions, tasks};

/// Time between two progress notifications.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A client that supports tasks gets a task handle for a turn that takes longer than this.
const TASK_AFTER: Duration = Duration::from_secs(2);

/// Time between two looks at a turn, if the node does not let this client wait.
const NO_WAIT_PAUSE: Duration = Duration::from_millis(500);

/// How often, and how long apart, a turn that the node does not know yet is interrupted.
const INTERRUPT_TRIES_MAX: u32 = 10;
const INTERRUPT_PAUSE: Duration = Duration::from_millis(50);

/// The longest line of output in a progress notification.
const PROGRESS_CHARS_MAX: usize = 120;

/// How long a call waits for its turn, and which output its reply holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyLimits {
    pub wait: Duration,
    pub output_bytes: usize,
    pub output_start: OutputStart,
}

/// A call and the turn that it follows.
pub(crate) struct TurnFollower<'c> {
    call: &'c ClientCall,
    client: &'c Client,
    session: SessionId,
    turn: TurnId,
    limits: ReplyLimits,
    began: Instant,
    until: Instant,
    /// The number of the next question.
    question: u32,
    note: Option<String>,
}

/// Runs code in the session that the call names or implies.
pub(crate) async fn run(
    door: &Door,
    call: &ClientCall,
    request: sessions::SessionRequest<'_>,
    code: String,
    limits: ReplyLimits,
) -> Result<CallToolResponse, Fault> {
    let client = door.client().await?;
    let found = sessions::find_or_make(door, call, request).await;
    if let Err(Fault::AlreadyRan { session, turn }) = found {
        return ended(call, client, session, turn, limits).await;
    }
    let mut found = found?;
    let submit = SubmitTurn {
        id: Some(call.turn.clone().unwrap_or_else(fresh_turn_id)),
        code,
        output_bytes_max: Some(limits.output_bytes),
        ..SubmitTurn::default()
    };
    let mut tried = false;
    loop {
        let turn = submit.id.clone().unwrap_or_else(fresh_turn_id);
        let mut follow = TurnFollower::new(call, client, found.id.clone(), turn, limits);
        follow.note.clone_from(&found.note);
        match follow.submit(submit.clone()).await {
            // The session ended since its last use. Its name then gets a new session.
            Err(Fault::Client(error)) if sessions::is_over(&error) && !tried => {
                if !sessions::forget(door, &found) {
                    return Err(error.into());
                }
                tried = true;
                found = match sessions::find_or_make(door, call, request).await {
                    Err(Fault::AlreadyRan { session, turn }) => {
                        return ended(call, client, session, turn, limits).await;
                    }
                    found => found?,
                };
            }
            Err(fault) => return Err(fault),
            Ok(turn) => return follow.see_through(turn).await,
        }
    }
}

/// The answer of a turn that ran in a session that has ended.
async fn ended(
    call: &ClientCall,
    client: &Client,
    session: SessionId,
    turn: TurnId,
    limits: ReplyLimits,
) -> Result<CallToolResponse, Fault> {
    let follow = TurnFollower::new(call, client, session, turn, limits);
    let turn = follow.now().await?;
    follow.see_through(turn).await
}

impl<'c> TurnFollower<'c> {
    pub fn new(
        call: &'c ClientCall,
        client: &'c Client,
        session: SessionId,
        turn: TurnId,
        limits: ReplyLimits,
    ) -> Self {
        let began = Instant::now();
        let (until, question, note) = (began, 1, None);
        let mut follow = Self { call, client, session, turn, limits, began, until, question, note };
        follow.wait_anew();
        follow
    }

    async fn submit(&self, submit: SubmitTurn) -> Result<Turn, Fault> {
        let submit = SubmitTurn { wait_ms: self.next_wait_ms(), ..submit };
        self.unless_ended(self.client.submit_turn(&self.session, &submit)).await
    }

    /// The current state of the turn.
    pub async fn now(&self) -> Result<Turn, Fault> {
        Ok(self.client.turn(&self.session, &self.turn, self.query(0)).await?)
    }

    /// Sends the turn the answer to its question, and continues.
    pub async fn answered(
        mut self,
        question: u32,
        responses: &InputResponses,
    ) -> Result<CallToolResponse, Fault> {
        self.question = question.saturating_add(1);
        match input::answer_of(responses) {
            UserAnswer::Text(text) => {
                input::send(self.client, &self.session, &self.turn, &text).await?;
                self.wait_and_see_through().await
            }
            UserAnswer::Declined => match self.refuse_permission(None).await? {
                true => self.wait_and_see_through().await,
                false => self.reply_refused().await,
            },
            UserAnswer::Missing => {
                let turn = self.now().await?;
                self.see_through(turn).await
            }
        }
    }

    /// Waits first, since the turn has just received its input.
    pub async fn wait_and_see_through(self) -> Result<CallToolResponse, Fault> {
        let turn = self.wait().await?;
        self.see_through(turn).await
    }

    /// Waits until the turn ends, asks for input, or the call's wait is over; then answers.
    pub async fn see_through(mut self, mut turn: Turn) -> Result<CallToolResponse, Fault> {
        loop {
            match turn.state {
                TurnState::Ended => return self.reply(turn).await,
                TurnState::AwaitingInput if !self.is_own() => return self.reply(turn).await,
                TurnState::AwaitingInput => {
                    let asked = input::ask(self.call, &turn, self.question);
                    match self.unless_ended(async { Ok::<_, Fault>(asked.await) }).await? {
                        AskOutcome::NotAsked => return self.reply(turn).await,
                        AskOutcome::ByAnswer(required) => return Ok(required.into()),
                        AskOutcome::Answered(UserAnswer::Text(text)) => {
                            input::send(self.client, &self.session, &self.turn, &text).await?;
                            // The time that the user took does not count.
                            self.wait_anew();
                        }
                        AskOutcome::Answered(UserAnswer::Declined)
                            if self.refuse_permission(turn.stdin_wait.clone()).await? =>
                        {
                            self.wait_anew();
                        }
                        AskOutcome::Answered(_) => return self.reply_refused().await,
                    }
                }
                TurnState::Waiting | TurnState::Running | TurnState::Interrupting => {
                    if Instant::now() >= self.until {
                        return self.handle_or_reply(turn).await;
                    }
                    self.tell_progress(&turn).await;
                }
            }
            turn = self.wait().await?;
        }
    }

    /// Whether the session belongs to this client. Another client's turn can be read, but not
    /// answered or stopped.
    fn is_own(&self) -> bool {
        self.call.scope.owns(&self.session)
    }

    fn wait_anew(&mut self) {
        let wait = match self.call.takes_tasks {
            true => self.limits.wait.min(TASK_AFTER),
            false => self.limits.wait,
        };
        self.until = Instant::now() + wait;
    }

    async fn wait(&self) -> Result<Turn, Fault> {
        let (wait_ms, began) = (self.next_wait_ms(), Instant::now());
        let query = self.query(wait_ms);
        let turn = self.unless_ended(self.client.turn(&self.session, &self.turn, query)).await?;
        let is_open = !matches!(turn.state, TurnState::Ended | TurnState::AwaitingInput);
        let left = Duration::from_millis(wait_ms).saturating_sub(began.elapsed());
        if is_open && !left.is_zero() {
            // The node has too many waiting clients to let this one wait.
            let pause = async {
                tokio::time::sleep(left.min(NO_WAIT_PAUSE)).await;
                Ok::<(), Fault>(())
            };
            self.unless_ended(pause).await?;
        }
        Ok(turn)
    }

    fn query(&self, wait_ms: u64) -> TurnQuery {
        TurnQuery {
            wait_ms,
            output_bytes_max: Some(self.limits.output_bytes),
            ..TurnQuery::default()
        }
    }

    fn next_wait_ms(&self) -> u64 {
        let left = self.until.saturating_duration_since(Instant::now());
        let step = if self.call.wants_progress() { left.min(PROGRESS_EVERY) } else { left };
        step.as_millis() as u64
    }

    async fn tell_progress(&self, turn: &Turn) {
        if self.call.wants_progress() {
            let last = turn.output.text.lines().next_back().unwrap_or_default();
            let last = last.chars().take(PROGRESS_CHARS_MAX).collect();
            self.call.tell_progress(self.began.elapsed().as_secs_f64(), last).await;
        }
    }

    /// Awaits `asked`, unless the call ends first.
    async fn unless_ended<T, E: Into<Fault>>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Fault> {
        let fault = tokio::select! {
            biased;
            answer = asked => return answer.map_err(E::into),
            fault = self.call.ended_early() => fault,
        };
        if matches!(fault, Fault::Cancelled) && self.is_own() {
            self.interrupt().await;
        }
        Err(fault)
    }

    async fn refuse_permission(&self, shown: Option<StdinWait>) -> Result<bool, Fault> {
        input::refuse_permission(self.client, &self.session, &self.turn, shown).await
    }

    /// Interrupts the turn of a cancelled call. The submit that the call has given up may still be on its way to the node.
    async fn interrupt(&self) {
        for _ in 0..INTERRUPT_TRIES_MAX {
            match self.client.interrupt_turn(&self.session, &self.turn).await {
                Err(error) if error.api_code() == Some(ErrorCode::TurnNotFound) => {
                    tokio::time::sleep(INTERRUPT_PAUSE).await;
                }
                // A turn that has ended meanwhile needs no interrupt.
                _ => return,
            }
        }
    }

    async fn reply_refused(mut self) -> Result<CallToolResponse, Fault> {
        self.note = Some(input::REFUSED.to_owned());
        let turn = self.now().await?;
        self.reply(turn).await
    }

    async fn handle_or_reply(self, turn: Turn) -> Result<CallToolResponse, Fault> {
        match self.call.takes_tasks && self.is_own() {
            true => Ok(tasks::handle_of(&turn).into()),
            false => self.reply(turn).await,
        }
    }

    async fn reply(self, turn: Turn) -> Result<CallToolResponse, Fault> {
        let TurnFollower { call, client, note, limits, .. } = self;
        Ok(reply_to(call, client, turn, limits, note).await?.into_result().into())
    }
}

/// Builds the reply to a call, with the output that the call asks for.
pub(crate) async fn reply_to(
    call: &ClientCall,
    client: &Client,
    turn: Turn,
    limits: ReplyLimits,
    note: Option<String>,
) -> Result<TurnReply, Fault> {
    let from = call.output_from(limits.output_start, &turn.session, &turn.id);
    let output = OutputPart::read(client, &turn, from, limits.output_bytes).await?;
    let reply = reply(client, turn, output, note).await?;
    let next = if reply.turn.state == TurnState::Ended { ALL_SEEN } else { reply.output.next };
    call.record_seen(&reply.turn.session, &reply.turn.id, next);
    Ok(reply)
}

/// Builds a tool's answer from a turn. Images come when the turn has ended.
pub(crate) async fn reply(
    client: &Client,
    turn: Turn,
    output: OutputPart,
    note: Option<String>,
) -> Result<TurnReply, Fault> {
    let (images, mut links) = match turn.state {
        TurnState::Ended => images::of(client, &turn).await?,
        _ => (Vec::new(), Vec::new()),
    };
    links.extend(output_link(&turn, &output));
    Ok(TurnReply { turn, output, images, links, note })
}
