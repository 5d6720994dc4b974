//! The record of one turn: brings the engine's events into the promised shape. Pure.
//!
//! - An action begins before it is updated or completed, and is completed at the turn's end at the latest.
//! - The answer is the message of phase `final_answer`, else the last message without a phase.
//! - The turn is completed exactly once.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use windlass_protocol::agent::{
    ActionKind, ActionPhase, AgentEvent, AgentEventKind, ResumeToken, TEXT_BYTES_MAX,
};

use super::engine::EngineEnd;

/// The phases of messages that mean something.
const FINAL: &str = "final_answer";
const COMMENTARY: &str = "commentary";

/// Maximum bytes of an id, a name or a step of a plan. A longer one is cut and gets a hash.
const ID_BYTES_MAX: usize = 512;

/// Maximum number of steps of a plan.
const STEPS_MAX: usize = 256;

/// Maximum number of actions that are open at the same time. The oldest is closed for the next one.
const OPEN_ACTIONS_MAX: usize = 1024;

/// What the turn's driver needs to know of an engine's event, besides the event itself.
#[derive(Debug, Default)]
pub struct TurnRecorder {
    engine: String,
    token: Option<ResumeToken>,
    /// The actions that are not completed, in order.
    open: Vec<OpenAction>,
    final_answer: Option<String>,
    last_message: Option<String>,
    /// Chunks of a message whose end has not come.
    streamed: String,
    notes: u64,
}

#[derive(Debug)]
struct OpenAction {
    id: String,
    action: ActionKind,
    title: String,
}

impl TurnRecorder {
    pub fn new(engine: &str) -> Self {
        Self { engine: engine.to_owned(), ..Self::default() }
    }

    pub fn set_token(&mut self, token: ResumeToken) {
        self.token = Some(token);
    }

    pub fn has_open_actions(&self) -> bool {
        !self.open.is_empty()
    }

    /// The events that an engine's event becomes. All but the last are made by Windlass.
    pub fn take(&mut self, mut kind: AgentEventKind) -> Vec<AgentEventKind> {
        let mut before = Vec::new();
        shorten(&mut kind);
        match &mut kind {
            AgentEventKind::Message { text, chunk: true, phase }
                if phase.as_deref() != Some(COMMENTARY) =>
            {
                let free = TEXT_BYTES_MAX.saturating_sub(self.streamed.len());
                self.streamed.push_str(&text[..text.floor_char_boundary(free.min(text.len()))]);
            }
            AgentEventKind::Message { text, chunk: false, phase } => match phase.as_deref() {
                Some(FINAL) => {
                    self.streamed.clear();
                    self.final_answer = Some(text.clone());
                }
                Some(COMMENTARY) => {
                    self.streamed.clear();
                    self.notes += 1;
                    kind = AgentEventKind::Action {
                        id: format!("note-{}", self.notes),
                        action: ActionKind::Note,
                        title: std::mem::take(text),
                        phase: ActionPhase::Completed,
                        ok: Some(true),
                        detail: None,
                    };
                }
                _ => {
                    self.streamed.clear();
                    self.last_message = Some(text.clone());
                }
            },
            AgentEventKind::Action { .. } => {
                self.end_streamed();
                self.take_action(&mut kind, &mut before);
            }
            AgentEventKind::Permission { action: Some(_), .. } => {
                self.end_streamed();
            }
            _ => {}
        }
        before.push(kind);
        before
    }

    /// The last events of the turn.
    pub fn finish(&mut self, end: EngineEnd) -> Vec<AgentEvent> {
        self.end_streamed();
        let mut events: Vec<AgentEvent> = std::mem::take(&mut self.open)
            .into_iter()
            .map(|action| AgentEvent::synthetic(action.closed()))
            .collect();
        let answer = self.final_answer.take().or(self.last_message.take()).unwrap_or_default();
        events.push(AgentEvent::synthetic(AgentEventKind::Completed {
            engine: self.engine.clone(),
            resume: self.token.clone(),
            ok: end.error.is_none() && !end.interrupted,
            answer,
            error: end.error,
            stop_reason: end.stop_reason,
        }));
        events
    }

    /// A message that came only in chunks ends when something else begins.
    fn end_streamed(&mut self) {
        if !self.streamed.is_empty() {
            self.last_message = Some(std::mem::take(&mut self.streamed));
        }
    }

    fn take_action(&mut self, kind: &mut AgentEventKind, before: &mut Vec<AgentEventKind>) {
        let AgentEventKind::Action { id, action, title, phase, .. } = kind else { return };
        let known = self.open.iter().position(|open| open.id == *id);
        if let Some(at) = known {
            // Updates may leave out what the first event said.
            let open = &mut self.open[at];
            if title.is_empty() {
                title.clone_from(&open.title);
            } else {
                open.title.clone_from(title);
            }
            if *action == ActionKind::Unknown {
                *action = open.action;
            }
            match phase {
                ActionPhase::Started => *phase = ActionPhase::Updated,
                ActionPhase::Updated => {}
                ActionPhase::Completed => drop(self.open.remove(at)),
            }
            return;
        }
        let open = OpenAction { id: id.clone(), action: *action, title: title.clone() };
        match phase {
            ActionPhase::Completed if *action == ActionKind::Note => {}
            ActionPhase::Completed => before.push(open.started()),
            ActionPhase::Started | ActionPhase::Updated => {
                *phase = ActionPhase::Started;
                if self.open.len() >= OPEN_ACTIONS_MAX {
                    before.push(self.open.remove(0).closed());
                }
                self.open.push(open);
            }
        }
    }
}

impl OpenAction {
    fn started(&self) -> AgentEventKind {
        self.event(ActionPhase::Started)
    }

    fn closed(self) -> AgentEventKind {
        self.event(ActionPhase::Completed)
    }

    fn event(&self, phase: ActionPhase) -> AgentEventKind {
        AgentEventKind::Action {
            id: self.id.clone(),
            action: self.action,
            title: self.title.clone(),
            phase,
            ok: None,
            detail: None,
        }
    }
}

/// Cuts the texts of an event at their limit.
fn shorten(kind: &mut AgentEventKind) {
    let cut = |text: &mut String| {
        if text.len() > TEXT_BYTES_MAX {
            text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        }
    };
    match kind {
        AgentEventKind::Message { text, .. }
        | AgentEventKind::Reasoning { text, .. }
        | AgentEventKind::Notice { text, .. } => cut(text),
        AgentEventKind::Action { id, title, detail, .. } => {
            bound_id(id);
            cut(title);
            detail.iter_mut().for_each(cut);
        }
        AgentEventKind::Permission { title, options, action, .. } => {
            cut(title);
            action.iter_mut().for_each(bound_id);
            options.iter_mut().for_each(|option| bound_id(&mut option.name));
        }
        AgentEventKind::Plan { steps } => {
            steps.truncate(STEPS_MAX);
            steps.iter_mut().for_each(|step| bound_id(&mut step.text));
        }
        _ => {}
    }
}

/// Shortens a long id or name. Different ones stay different.
fn bound_id(id: &mut String) {
    if id.len() > ID_BYTES_MAX {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        let hash = hasher.finish();
        id.truncate(id.floor_char_boundary(ID_BYTES_MAX));
        id.push_str(&format!("...{hash:016x}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str, chunk: bool, phase: Option<&str>) -> AgentEventKind {
        AgentEventKind::Message { text: text.into(), chunk, phase: phase.map(str::to_owned) }
    }

    fn action(id: &str, phase: ActionPhase) -> AgentEventKind {
        AgentEventKind::Action {
            id: id.into(),
            action: ActionKind::Command,
            title: "ls".into(),
            phase,
            ok: None,
            detail: None,
        }
    }

    /// Takes the events and ends the turn. Returns the shape of all events.
    fn check(events: Vec<AgentEventKind>) -> String {
        let mut recorder = TurnRecorder::new("e");
        let mut shown = Vec::new();
        let mut show = |kind: &AgentEventKind| {
            shown.push(match kind {
                AgentEventKind::Message { text, chunk, .. } => {
                    format!("{}{text}", if *chunk { "+" } else { "=" })
                }
                AgentEventKind::Action { id, action, phase, .. } => {
                    format!("{id}:{action:?}:{phase:?}")
                }
                AgentEventKind::Completed { ok, answer, .. } => format!("done({ok},{answer})"),
                other => format!("{other:?}"),
            });
        };
        for event in events {
            recorder.take(event).iter().for_each(&mut show);
        }
        recorder.finish(EngineEnd::default()).iter().for_each(|event| show(&event.kind));
        shown.join(" ")
    }

    #[test]
    fn the_answer_is_the_final_message_or_the_last_one_without_a_phase() {
        for (events, shown) in [
            (
                vec![
                    message("a", false, Some(FINAL)),
                    message("b", false, None),
                    message("thinking", false, Some(COMMENTARY)),
                ],
                "=a =b note-1:Note:Completed done(true,a)",
            ),
            (
                vec![message("a", false, None), message("b", false, Some("other"))],
                "=a =b done(true,b)",
            ),
            (vec![message("a", true, None), message("b", true, None)], "+a +b done(true,ab)"),
            (
                vec![
                    message("first", true, None),
                    action("1", ActionPhase::Completed),
                    message("la", true, None),
                    message("st", true, None),
                ],
                "+first 1:Command:Started 1:Command:Completed +la +st done(true,last)",
            ),
            (
                vec![message("par", true, None), message("whole", false, None)],
                "+par =whole done(true,whole)",
            ),
            (vec![], "done(true,)"),
        ] {
            assert_eq!(check(events), shown);
        }
    }

    #[test]
    fn actions_begin_before_they_go_on_and_are_closed_at_the_end() {
        assert_eq!(
            check(vec![
                action("1", ActionPhase::Started),
                action("1", ActionPhase::Started),
                action("2", ActionPhase::Updated),
                action("1", ActionPhase::Completed),
                action("3", ActionPhase::Completed),
            ]),
            "1:Command:Started 1:Command:Updated 2:Command:Started 1:Command:Completed \
             3:Command:Started 3:Command:Completed 2:Command:Completed done(true,)"
        );
    }

    #[test]
    fn long_ids_are_shortened_and_stay_apart() {
        let mut recorder = TurnRecorder::new("e");
        let long = "x".repeat(3_000_000);
        for (id, phase) in [
            (long.clone(), ActionPhase::Started),
            (format!("{long}y"), ActionPhase::Started),
            (long, ActionPhase::Completed),
        ] {
            let taken = recorder.take(action(&id, phase));
            let [AgentEventKind::Action { id, .. }] = &taken[..] else { panic!("{}", taken.len()) };
            assert!(id.len() < 600);
        }
        assert_eq!(recorder.open.len(), 1);
    }

    #[test]
    fn an_update_keeps_what_it_does_not_say() {
        let mut recorder = TurnRecorder::new("e");
        recorder.take(action("1", ActionPhase::Started));
        let update = AgentEventKind::Action {
            id: "1".into(),
            action: ActionKind::Unknown,
            title: String::new(),
            phase: ActionPhase::Completed,
            ok: Some(false),
            detail: None,
        };
        let taken = recorder.take(update);
        assert!(matches!(
            &taken[..],
            [AgentEventKind::Action { action: ActionKind::Command, title, ok: Some(false), .. }]
                if title == "ls"
        ));
    }
}
