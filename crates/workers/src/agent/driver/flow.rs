//! What a turn's stages and the engine's outputs ask for: claims the conversation, starts the process, sends the prompt,
//! and passes events and questions on.

use std::time::Instant;

use serde_json::Value;
use windlass_protocol::agent::{AgentEvent, AgentEventKind, ResumeToken, error_name};
use windlass_protocol::host::ToolError;
use windlass_protocol::limits::DEADLINE_MS_MAX;
use windlass_protocol::worker::FromWorker;
use windlass_protocol::{CallNo, ErrorCode, TurnNo};

use super::super::engine::{EngineEnd, EngineInput, EngineOutput, error};
use super::super::permissions::DeskAct;
use super::super::process::{EngineProcess, Line};
use super::{AgentDriver, CLAIM_TRIES_MAX, ClaimTime, TurnStage};

impl AgentDriver {
    /// Asks the node for the conversation. The node answers when no other turn has it.
    pub(super) fn claim(&mut self, token: ResumeToken, since: ClaimTime) {
        let call = self.requests.number();
        let Some(turn) = &mut self.turn else { return };
        let (number, name) = (turn.number, token.claim_name());
        turn.claim_tries += 1;
        // Until the answer to this very call comes.
        self.conversation.may_have_changed |= turn.claim_tries > 1;
        turn.stage = TurnStage::Claiming { call, token, since };
        // The header is short and the body is empty, so it can be encoded.
        let _ = self.outbox.with_body(b"{}", |more| FromWorker::ToolCall {
            turn: number,
            call,
            name: name.clone(),
            deadline_ms: Some(DEADLINE_MS_MAX),
            more,
        });
    }

    pub(super) async fn claim_answered(
        &mut self,
        turn: TurnNo,
        call: CallNo,
        ok: bool,
        body: &[u8],
    ) {
        let Some(running) = self.turn.as_mut().filter(|running| running.number == turn) else {
            return;
        };
        let TurnStage::Claiming { call: open, token, since } = running.stage.clone() else {
            return;
        };
        if open != call {
            return;
        }
        if !ok {
            self.conversation.may_have_changed = true;
            let refused = serde_json::from_slice::<ToolError>(body).ok();
            let code = refused.as_ref().and_then(|refused| refused.code);
            // The node was replaced. The next one answers.
            if code == Some(ErrorCode::ToolHostGone) && running.claim_tries < CLAIM_TRIES_MAX {
                return self.claim(token, since);
            }
            let why = refused.map(|refused| refused.message).unwrap_or_default();
            let failed = error(error_name::CLAIM, format!("cannot use {token}: {why}"));
            let end = EngineEnd { error: Some(failed), ..EngineEnd::default() };
            return match since {
                ClaimTime::BeforeStart => self.end_turn(end),
                // The engine may have its prompt already.
                ClaimTime::AfterStart => self.stop_turn(end).await,
            };
        }
        let answer = serde_json::from_slice::<Value>(body).unwrap_or_default();
        let unnoticed = std::mem::take(&mut self.conversation.may_have_changed);
        let changed = unnoticed || answer["changed"].as_bool().unwrap_or(true);
        running.recorder.set_token(token.clone());
        running.progress_at = Instant::now();
        self.conversation.token = Some(token);
        match since {
            ClaimTime::AfterStart => self.send_prompt(),
            ClaimTime::BeforeStart => {
                if changed && let Some(process) = self.process.take() {
                    // Another session has gone on with the conversation, which this process does not know.
                    process.kill().await;
                }
                match &self.process {
                    Some(_) if self.conversation.is_ready => self.send_prompt(),
                    _ => self.start_engine().await,
                }
            }
        }
    }

    pub(super) async fn start_engine(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
        self.conversation.is_ready = false;
        let id = self.conversation.token.as_ref().map(ResumeToken::id);
        let Some(delay) = self.engine.start_delay(id.as_deref(), &self.home) else {
            return self.start_process().await;
        };
        if let Some(turn) = &mut self.turn {
            turn.stage = TurnStage::Delayed { until: Instant::now() + delay };
            let (engine, seconds) = (&self.settings.engine, delay.as_secs());
            let text = format!("{engine} can resume this conversation in {seconds} s");
            self.tell(&AgentEvent::synthetic(AgentEventKind::Notice { text, id: None }));
        }
    }

    pub(super) async fn start_process(&mut self) {
        let id = self.conversation.token.as_ref().map(ResumeToken::id);
        let command = self.engine.command(&self.settings, id.as_deref());
        if let Some(turn) = &mut self.turn {
            turn.stage = TurnStage::Starting;
            turn.progress_at = Instant::now();
        }
        if let Some(why) = command.refusal {
            let failed = Some(error(error_name::START, why));
            return self.end_turn(EngineEnd { error: failed, ..EngineEnd::default() });
        }
        match EngineProcess::start(&self.settings.command, &command, &self.home) {
            Ok(process) => {
                self.process = Some(process);
                let Some(turn) = &self.turn else { return };
                let begin = EngineInput::Begin { resume: id.as_deref(), prompt: &turn.prompt };
                let outputs = self.engine.step(begin);
                self.follow(outputs, None).await;
            }
            Err(cause) => {
                let message = format!("cannot start {}: {cause}", self.settings.engine);
                let failed = Some(error(error_name::START, message));
                self.end_turn(EngineEnd { error: failed, ..EngineEnd::default() });
            }
        }
    }

    /// The engine is ready, and the turn has the conversation.
    pub(super) fn send_prompt(&mut self) {
        let (Some(turn), Some(token)) = (&mut self.turn, &self.conversation.token) else { return };
        turn.stage = TurnStage::Running;
        turn.progress_at = Instant::now();
        let engine = self.settings.engine.clone();
        let started = AgentEventKind::Started { engine, resume: token.clone() };
        let outputs = self.engine.step(EngineInput::Prompt(&turn.prompt));
        self.tell(&AgentEvent::synthetic(started));
        self.send_all(outputs);
    }

    pub(super) async fn take_line(&mut self, line: Line) {
        match line {
            Line::Json { value, bytes } => {
                let outputs = self.engine.step(EngineInput::Line(&value));
                self.follow(outputs, Some((value, bytes))).await;
            }
            Line::Other { bytes } => {
                let text = format!("{} wrote {bytes} bytes that are no JSON", self.settings.engine);
                if self.turn.is_some() {
                    self.tell(&AgentEvent::synthetic(AgentEventKind::Notice { text, id: None }));
                }
            }
        }
    }

    /// Does what the engine's adapter asks for. `raw` is the line that it comes from, and the line's size.
    pub(super) async fn follow(&mut self, outputs: Vec<EngineOutput>, raw: Option<(Value, usize)>) {
        for output in outputs {
            match output {
                EngineOutput::Send(line) => self.send(&line),
                EngineOutput::SendLast(text) => {
                    if let Some(process) = &mut self.process {
                        process.send_last(text);
                    }
                }
                EngineOutput::Ready { id } => self.engine_ready(&id).await,
                EngineOutput::Event(kind) => self.take_event(kind, raw.as_ref()),
                EngineOutput::Ask(question) => {
                    let Some(turn) = &mut self.turn else { continue };
                    turn.progress_at = Instant::now();
                    let acts = turn.desk.ask(question, Instant::now());
                    self.act_with(acts, raw.as_ref());
                }
                EngineOutput::Withdraw { permission } => {
                    let Some(turn) = &mut self.turn else { continue };
                    let acts = turn.desk.withdraw(&permission);
                    self.act(acts);
                }
                EngineOutput::Done(end) => self.engine_done(end).await,
                EngineOutput::Failed(failed) => {
                    self.stop_turn(EngineEnd { error: Some(failed), ..EngineEnd::default() }).await;
                }
            }
        }
    }

    /// The engine takes prompts for the conversation with this id.
    pub(super) async fn engine_ready(&mut self, id: &str) {
        self.conversation.is_ready = true;
        let token = match ResumeToken::new(&self.settings.engine, id) {
            Ok(token) => token,
            Err(bad) => {
                let failed = Some(error(error_name::PROTOCOL, bad.to_string()));
                return self.stop_turn(EngineEnd { error: failed, ..EngineEnd::default() }).await;
            }
        };
        let Some(turn) = &self.turn else { return };
        if turn.stage != TurnStage::Starting {
            return;
        }
        if self.conversation.token.as_ref() == Some(&token) {
            self.send_prompt();
        } else {
            self.claim(token, ClaimTime::AfterStart);
        }
    }

    pub(super) fn take_event(&mut self, kind: AgentEventKind, raw: Option<&(Value, usize)>) {
        let Some(turn) = &mut self.turn else { return };
        // Notices are no progress: an engine that retries for ever sends them for ever.
        if !matches!(kind, AgentEventKind::Notice { .. }) {
            turn.progress_at = Instant::now();
        }
        let mut kinds = turn.recorder.take(kind);
        let last = kinds.pop();
        for made in kinds {
            self.tell(&AgentEvent::synthetic(made));
        }
        if let Some(kind) = last {
            let (value, bytes) = raw.map(|(value, bytes)| (value.clone(), *bytes)).unzip();
            self.tell(&AgentEvent::with_raw(kind, value, bytes.unwrap_or_default()));
        }
    }

    pub(super) fn act(&mut self, acts: Vec<DeskAct>) {
        self.act_with(acts, None);
    }

    /// Does what the desk for permissions decides.
    pub(super) fn act_with(&mut self, acts: Vec<DeskAct>, raw: Option<&(Value, usize)>) {
        for act in acts {
            match act {
                DeskAct::Announce(question) => {
                    let kind = AgentEventKind::Permission {
                        id: question.id,
                        title: question.title,
                        options: question.options,
                        action: question.action,
                    };
                    self.take_event(kind, raw);
                }
                DeskAct::Wait(prompt) => {
                    let Some(turn) = &self.turn else { return };
                    let turn = turn.number;
                    self.outbox.plain(FromWorker::StdinWait { turn, prompt, secret: false });
                }
                DeskAct::Decided { question, option, by } => {
                    let allowed = option.as_ref().is_some_and(|option| option.kind.allows());
                    let (id, chosen) = (question.id, option.as_ref().map(|option| &option.id));
                    let chosen = chosen.cloned();
                    let kind =
                        AgentEventKind::Decision { id: id.clone(), option: chosen, allowed, by };
                    self.tell(&AgentEvent::synthetic(kind));
                    if let Some(turn) = &mut self.turn {
                        turn.progress_at = Instant::now();
                    }
                    let decided = match &option {
                        Some(option) => EngineInput::Decide { permission: &id, option },
                        None => EngineInput::Refuse { permission: &id },
                    };
                    let outputs = self.engine.step(decided);
                    self.send_all(outputs);
                }
                DeskAct::Hint(text) => {
                    let kind = AgentEventKind::Notice { text, id: None };
                    self.tell(&AgentEvent::synthetic(kind));
                }
            }
        }
    }

    pub(super) fn send_all(&mut self, outputs: Vec<EngineOutput>) {
        for output in outputs {
            if let EngineOutput::Send(line) = output {
                self.send(&line);
            }
        }
    }

    pub(super) fn send(&mut self, line: &Value) {
        if let Some(process) = &self.process {
            process.send(line);
        }
    }
}
