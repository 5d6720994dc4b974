//! Decides about permissions: by the session's policy, by a client's answer, or by a deadline. Pure: it gets the time
//! as an argument. Each question is decided exactly once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use windlass_protocol::agent::{DecidedBy, OptionKind, PermissionOption, PermissionPolicy};

use super::engine::Question;

/// Maximum number of questions that wait at the same time. More are refused.
const QUESTIONS_MAX: usize = 64;

/// What follows from an input, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeskAct {
    /// Tell everybody about the question.
    Announce(Question),
    /// Wait for an answer with this prompt.
    Wait(String),
    /// The question is decided. No option: it is refused, and the engine offers no option for that, or the engine
    /// withdrew it.
    Decided { question: Question, option: Option<PermissionOption>, by: DecidedBy },
    /// Tell the user something about an answer.
    Hint(String),
}

/// The open questions of a turn.
#[derive(Debug)]
pub struct PermissionDesk {
    engine: String,
    policy: PermissionPolicy,
    patience: Duration,
    /// The first question is the one that clients are asked.
    open: VecDeque<OpenQuestion>,
    /// The question that the keeper waits for an answer to.
    waits_for: Option<String>,
}

#[derive(Debug)]
struct OpenQuestion {
    question: Question,
    until: Instant,
}

impl PermissionDesk {
    pub fn new(engine: &str, policy: PermissionPolicy, patience: Duration) -> Self {
        let engine = engine.to_owned();
        let open = VecDeque::new();
        Self { engine, policy, patience, open, waits_for: None }
    }

    pub fn has_questions(&self) -> bool {
        !self.open.is_empty()
    }

    /// When the next deadline passes.
    pub fn due(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.until).min()
    }

    /// The engine asks.
    pub fn ask(&mut self, question: Question, now: Instant) -> Vec<DeskAct> {
        let mut acts = vec![DeskAct::Announce(question.clone())];
        let wanted = match self.policy {
            PermissionPolicy::Allow => Some(true),
            PermissionPolicy::Refuse => Some(false),
            PermissionPolicy::Ask if self.open.len() >= QUESTIONS_MAX => Some(false),
            PermissionPolicy::Ask => None,
        };
        match wanted {
            Some(allow) => {
                let option = choose(&question, allow);
                acts.push(DeskAct::Decided { question, option, by: DecidedBy::Policy });
            }
            None => {
                self.open.push_back(OpenQuestion { question, until: now + self.patience });
                self.wait(&mut acts);
            }
        }
        acts
    }

    /// A client answered: with the id of a question and a word. A word alone answers nothing. It may have been meant for
    /// an earlier question, or sent twice.
    pub fn answer(&mut self, text: &str, is_end: bool) -> Vec<DeskAct> {
        self.waits_for = None;
        let mut acts = Vec::new();
        let words: Vec<&str> = text.split_whitespace().collect();
        let (index, word) = match words[..] {
            [] if is_end => (self.open.front().map(|_| 0), "deny"),
            [id, word] => (self.open.iter().position(|open| open.question.id == id), word),
            _ => (None, ""),
        };
        let chosen = index.and_then(|at| Some((at, meant(&self.open[at].question, word)?)));
        match chosen {
            Some((at, option)) => {
                if let Some(OpenQuestion { question, .. }) = self.open.remove(at) {
                    acts.push(DeskAct::Decided { question, option, by: DecidedBy::Client });
                }
            }
            None if self.open.is_empty() => {}
            None => {
                let hint = format!("{:?} answers no open question", text.trim());
                acts.push(DeskAct::Hint(hint));
            }
        }
        self.wait(&mut acts);
        acts
    }

    /// The engine does not wait any more.
    pub fn withdraw(&mut self, id: &str) -> Vec<DeskAct> {
        let found = self.open.iter().position(|open| open.question.id == id);
        let mut acts = Vec::new();
        if let Some(OpenQuestion { question, .. }) = found.and_then(|at| self.open.remove(at)) {
            acts.push(DeskAct::Decided { question, option: None, by: DecidedBy::Engine });
        }
        self.wait(&mut acts);
        acts
    }

    /// Refuses the questions whose deadline has passed.
    pub fn pass_time(&mut self, now: Instant) -> Vec<DeskAct> {
        let mut acts = Vec::new();
        while let Some(at) = self.open.iter().position(|open| open.until <= now) {
            self.refuse(at, DecidedBy::Deadline, &mut acts);
        }
        self.wait(&mut acts);
        acts
    }

    /// Refuses all questions, because the turn stops.
    pub fn close(&mut self) -> Vec<DeskAct> {
        let mut acts = Vec::new();
        while !self.open.is_empty() {
            self.refuse(0, DecidedBy::Interrupt, &mut acts);
        }
        acts
    }

    fn refuse(&mut self, at: usize, by: DecidedBy, acts: &mut Vec<DeskAct>) {
        if let Some(OpenQuestion { question, .. }) = self.open.remove(at) {
            let option = choose(&question, false);
            acts.push(DeskAct::Decided { question, option, by });
        }
    }

    /// Asks for an answer to the first question, unless its answer is already waited for.
    fn wait(&mut self, acts: &mut Vec<DeskAct>) {
        let Some(OpenQuestion { question, .. }) = self.open.front() else { return };
        if self.waits_for.as_ref() != Some(&question.id) {
            self.waits_for = Some(question.id.clone());
            acts.push(DeskAct::Wait(prompt(&self.engine, question)));
        }
    }
}

/// Maximum characters of a question's title in a prompt. What is left out is counted.
const TITLE_CHARS_MAX: usize = 4000;

/// A longer run of spaces is told by its length: it could push the end of a command out of sight.
const SPACES_MAX: usize = 8;

/// The prompt for people. The title is the engine's text: on one line, and without characters that change a terminal.
fn prompt(engine: &str, question: &Question) -> String {
    let Question { id, title, options, .. } = question;
    let mut words: Vec<&str> = options.iter().map(|option| word(option.kind)).collect();
    if !words.contains(&DENY) {
        words.push(DENY);
    }
    let title = shown_title(title);
    format!("{engine} asks [{id}]: {title}\nAnswer {id} followed by one of {}: ", words.join(", "))
}

fn shown_title(title: &str) -> String {
    let mut shown = String::new();
    let mut spaces = 0;
    let plain = title.chars().map(|char| if char.is_control() { ' ' } else { char });
    let mut chars = plain.take(TITLE_CHARS_MAX);
    loop {
        let next = chars.next();
        if next.is_some_and(char::is_whitespace) {
            spaces += 1;
            continue;
        }
        match spaces {
            0..=SPACES_MAX => shown.extend(std::iter::repeat_n(' ', spaces)),
            _ => shown.push_str(&format!(" [{spaces} spaces] ")),
        }
        spaces = 0;
        match next {
            Some(char) => shown.push(char),
            None => break,
        }
    }
    let more = title.chars().count().saturating_sub(TITLE_CHARS_MAX);
    if more > 0 {
        shown.push_str(&format!(" ... ({more} more characters)"));
    }
    shown
}

/// The word that refuses. It always does, whatever the engine offers.
const DENY: &str = "deny";

fn word(kind: OptionKind) -> &'static str {
    match kind {
        OptionKind::AllowOnce => "allow",
        OptionKind::AllowAlways => "always",
        OptionKind::RejectOnce => DENY,
        OptionKind::RejectAlways => "never",
    }
}

/// The option that a client's word means: a usual word, or the option's id. Refusing needs no option.
fn meant(question: &Question, answer: &str) -> Option<Option<PermissionOption>> {
    let wanted: &[OptionKind] = match &*answer.to_ascii_lowercase() {
        "n" | "no" | DENY | "refuse" => return Some(choose(question, false)),
        "y" | "yes" | "allow" => &[OptionKind::AllowOnce, OptionKind::AllowAlways],
        "always" => &[OptionKind::AllowAlways],
        "never" => &[OptionKind::RejectAlways],
        _ => {
            let by_id = question.options.iter().find(|option| option.id == answer);
            return by_id.cloned().map(Some);
        }
    };
    first_of(question, wanted).map(Some)
}

/// The option by which a policy or a deadline allows or refuses.
fn choose(question: &Question, allow: bool) -> Option<PermissionOption> {
    let wanted = match allow {
        true => [OptionKind::AllowOnce, OptionKind::AllowAlways],
        false => [OptionKind::RejectOnce, OptionKind::RejectAlways],
    };
    first_of(question, &wanted)
}

fn first_of(question: &Question, wanted: &[OptionKind]) -> Option<PermissionOption> {
    wanted
        .iter()
        .find_map(|kind| question.options.iter().find(|option| option.kind == *kind))
        .cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(id: &str) -> Question {
        let option = |id: &str, kind| PermissionOption { id: id.into(), name: id.into(), kind };
        let options = vec![
            option("once", OptionKind::AllowOnce),
            option("ever", OptionKind::AllowAlways),
            option("no-thanks", OptionKind::RejectOnce),
        ];
        Question { id: id.into(), title: "run ls".into(), options, action: None }
    }

    /// Runs steps of one word each: `ask:ID`, `say:TEXT`, `end`, `withdraw:ID`, `+SECONDS`, `close`.
    fn check(policy: PermissionPolicy, script: &[(&str, &str)]) {
        let mut now = Instant::now();
        let mut desk = PermissionDesk::new("codex", policy, Duration::from_secs(10));
        for (step, expected) in script {
            let acts = match step.split_once(':').unwrap_or((step, "")) {
                ("ask", id) => desk.ask(question(id), now),
                ("say", text) => desk.answer(text, false),
                ("end", _) => desk.answer("", true),
                ("withdraw", id) => desk.withdraw(id),
                ("close", _) => desk.close(),
                (pause, _) => {
                    now += Duration::from_secs(pause[1..].parse().unwrap());
                    desk.pass_time(now)
                }
            };
            let shown: Vec<String> = acts.iter().map(shown).collect();
            assert_eq!(shown.join(" "), *expected, "{step}");
        }
    }

    fn shown(act: &DeskAct) -> String {
        match act {
            DeskAct::Announce(question) => format!("told-{}", question.id),
            DeskAct::Wait(prompt) => {
                let id = prompt.split(['[', ']']).nth(1).unwrap();
                format!("wait-{id}")
            }
            DeskAct::Decided { question, option, by } => {
                let option = option.as_ref().map_or("none", |option| &option.id);
                format!("{}={option}({by:?})", question.id)
            }
            DeskAct::Hint(_) => "hint".to_owned(),
        }
    }

    #[test]
    fn a_policy_answers_at_once() {
        check(PermissionPolicy::Allow, &[("ask:p1", "told-p1 p1=once(Policy)")]);
        check(PermissionPolicy::Refuse, &[("ask:p1", "told-p1 p1=no-thanks(Policy)")]);
    }

    #[test]
    fn a_client_answers_one_question_at_a_time() {
        check(
            PermissionPolicy::Ask,
            &[
                ("ask:p1", "told-p1 wait-p1"),
                ("ask:p2", "told-p2"),
                ("say:p1 allow", "p1=once(Client) wait-p2"),
                ("say:p2 ever", "p2=ever(Client)"),
                ("say:p2 allow", ""),
                ("ask:p3", "told-p3 wait-p3"),
                ("say:p3 perhaps", "hint wait-p3"),
                ("say:p9 allow", "hint wait-p3"),
                ("end", "p3=no-thanks(Client)"),
            ],
        );
    }

    #[test]
    fn an_answer_without_an_id_is_never_taken_for_any_question() {
        check(
            PermissionPolicy::Ask,
            &[
                ("ask:p1", "told-p1 wait-p1"),
                ("say:allow", "hint wait-p1"),
                ("withdraw:p1", "p1=none(Engine)"),
                ("ask:p2", "told-p2 wait-p2"),
                ("say:allow", "hint wait-p2"),
                ("say:p1 allow", "hint wait-p2"),
                ("say:p2 allow", "p2=once(Client)"),
                ("ask:p3", "told-p3 wait-p3"),
                ("ask:p4", "told-p4"),
                ("withdraw:p3", "p3=none(Engine) wait-p4"),
                ("say:p4 deny", "p4=no-thanks(Client)"),
            ],
        );
    }

    #[test]
    fn a_question_without_an_option_to_refuse_is_refused() {
        let now = Instant::now();
        let mut desk = PermissionDesk::new("e", PermissionPolicy::Refuse, Duration::from_secs(10));
        let only = Question { options: question("p1").options[..1].to_vec(), ..question("p1") };
        let shown_acts: Vec<String> = desk.ask(only.clone(), now).iter().map(shown).collect();
        assert_eq!(shown_acts.join(" "), "told-p1 p1=none(Policy)");
        let mut desk = PermissionDesk::new("e", PermissionPolicy::Ask, Duration::from_secs(10));
        desk.ask(only, now);
        let acts: Vec<String> = desk.answer("p1 no", false).iter().map(shown).collect();
        assert_eq!(acts.join(" "), "p1=none(Client)");
    }

    #[test]
    fn a_title_cannot_change_the_terminal_or_add_a_line() {
        let (spaces, end) = (" ".repeat(300), "x".repeat(5000));
        let title = format!("rm\u{1b}[8m\r\nfake [p9]:{spaces}; rm {end}");
        let shown = prompt("e", &Question { title, ..question("p1") });
        assert_eq!(shown.lines().count(), 2, "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown}");
        assert!(shown.contains("[p9]: [300 spaces] ; rm xxx"), "{shown}");
        assert!(shown.contains(" more characters)\nAnswer p1 followed"), "{shown}");
    }

    #[test]
    fn nobody_answers_and_the_question_is_refused() {
        check(
            PermissionPolicy::Ask,
            &[
                ("ask:p1", "told-p1 wait-p1"),
                ("+9", ""),
                ("ask:p2", "told-p2"),
                ("+1", "p1=no-thanks(Deadline) wait-p2"),
                ("close", "p2=no-thanks(Interrupt)"),
                ("close", ""),
            ],
        );
    }
}
