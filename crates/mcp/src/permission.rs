//! Permissions that an agent in a session asks for. The turn's prompt has the question; the client's user answers it by a
//! form. A model never answers: the user who chose to be asked wants a person to decide.

use serde_json::{Value, json};
use windlass_protocol::api::StdinWait;

/// The word that refuses a permission.
const DENY: &str = "deny";

/// A permission, as the turn's prompt tells it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PermissionPrompt<'p> {
    id: &'p str,
    /// What the agent wants, on one line.
    pub question: &'p str,
    words: Vec<&'p str>,
}

impl<'p> PermissionPrompt<'p> {
    /// `None` if the turn waits for something else. The first line of a prompt is the question, the second one the
    /// possible answers (`workers::agent::permissions`).
    pub fn of(wait: &'p StdinWait) -> Option<Self> {
        let (question, answers) = wait.prompt.split_once('\n')?;
        let (_, rest) = question.split_once(" asks [")?;
        let (id, _) = rest.split_once("]: ")?;
        let answers = answers.strip_prefix("Answer ")?.strip_prefix(id)?;
        let words = answers.strip_prefix(" followed by one of ")?.trim_end().strip_suffix(':')?;
        let words = words.split(", ").collect();
        Some(Self { id, question, words })
    }

    /// The form's field. Its values are the lines that answer the question, so an answer that comes late answers no
    /// other question.
    pub fn field(&self) -> Value {
        let lines: Vec<String> = self.words.iter().map(|word| self.line(word)).collect();
        let names: Vec<&str> = self.words.iter().map(|word| name(word)).collect();
        json!({"type": "string", "title": "Decision", "enum": lines, "enumNames": names})
    }

    /// The line that refuses the permission.
    pub fn refusal(&self) -> String {
        self.line(DENY)
    }

    fn line(&self, word: &str) -> String {
        format!("{} {word}", self.id)
    }
}

/// A word for people.
fn name(word: &str) -> &str {
    match word {
        "allow" => "Allow once",
        "always" => "Allow for this conversation",
        DENY => "Refuse",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_of_an_agent_is_a_permission_and_another_is_none() {
        let wait = |prompt: &str| StdinWait { prompt: prompt.to_owned(), secret: false };
        let asked = wait(
            "codex asks [p7]: run x [p8]: y\nAnswer p7 followed by one of allow, always, deny: ",
        );
        let permission = PermissionPrompt::of(&asked).unwrap();
        assert_eq!(permission.question, "codex asks [p7]: run x [p8]: y");
        assert_eq!(permission.field()["enum"], json!(["p7 allow", "p7 always", "p7 deny"]));
        assert_eq!(permission.refusal(), "p7 deny");
        for other in [
            "",
            "name? ",
            "codex asks [p7]: run x",
            "codex asks [p7]: x\nAnswer p8 followed by one of allow: ",
            "a\nAnswer p7 followed by one of allow: ",
        ] {
            assert_eq!(PermissionPrompt::of(&wait(other)), None, "{other}");
        }
    }
}
