//! The code that the cases send to a worker, in the worker's language. Built-in sets are TOML files in
//! `snippets/`; a user can give another file of the same form.

use std::collections::BTreeMap;

use toml_edit::DocumentMut;

/// The snippets of one language.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnippetSet {
    /// The name of the language, for people.
    pub language: String,
    snippets: BTreeMap<String, String>,
}

/// Why a text is not a set of snippets.
#[derive(Debug, thiserror::Error)]
pub enum SnippetError {
    #[error("the file is not TOML: {0}")]
    NoToml(#[from] toml_edit::TomlError),
    #[error("the file has no text `language`")]
    NoLanguage,
    #[error("the file has no table `[snippets]`")]
    NoTable,
    #[error("the snippet `{0}` is not a text")]
    NoText(String),
    #[error("there is no snippet `{name}`; the snippets are {}", names())]
    Unknown { name: String },
}

/// Every snippet, and what its code does. Text in quotes is printed to standard output, or shown as a result.
pub const SNIPPETS: &[(&str, &str)] = &[
    ("print", "prints `windlass-print` and a new line"),
    ("value", "is an expression with the value 42"),
    ("set", "stores `windlass-state` in a variable"),
    ("get", "prints the variable that `set` has set"),
    ("error", "fails with an error whose message has `windlass-error` in it"),
    ("error_big", "fails with an error whose message has 300,000 bytes"),
    ("error_unicode", "fails with an error whose message is not valid Unicode"),
    ("result_big", "is an expression whose value shows as 500,000 times `r`"),
    ("exit_0", "asks the interpreter to exit with status 0"),
    ("exit_3", "asks the interpreter to exit with status 3"),
    ("nap", "prints `windlass-started`, sleeps 0.3 s, and prints `windlass-rested`"),
    ("sleep", "prints `windlass-started` and sleeps for 60 s"),
    ("loop", "prints `windlass-started` and computes for ever"),
    (
        "child",
        "starts a program that prints `windlass-started` and lives for 60 s, and waits for it",
    ),
    (
        "fork",
        "forks without exec; the child prints `windlass-started` and sleeps 60 s; waits for it",
    ),
    (
        "catch",
        "prints `windlass-started`, sleeps 60 s, catches the interrupt, prints `windlass-caught`, sleeps \
         0.6 s, prints `windlass-slept`",
    ),
    ("input", "asks `windlass-prompt` for a line, and prints `got:` and the line"),
    ("input_length", "reads a line, and prints `length:` and its length without the line end"),
    ("input_eof", "reads a line; at the end of the input, prints `windlass-eof`"),
    (
        "prompt_big",
        "asks for a line with a prompt of 200,000 times `p`, and prints `got:` and the line",
    ),
    ("display", "shows rich output of any type, once"),
    ("display_many", "shows rich output of 5,000 bytes, 400 times"),
    (
        "tool",
        "calls the tool `check.echo` with text `hello`, and prints `tool:` and the result, a text",
    ),
    (
        "tool_length",
        "calls `check.echo` with text `hello`, and prints `length:` and the result's length",
    ),
    ("tool_big", "calls `check.echo` with a text of 1,000,000 times `a`"),
];

/// The built-in sets: names, and the file.
const BUILT_IN: &[(&[&str], &str)] = &[
    (&["python"], include_str!("../snippets/python.toml")),
    (&["shell", "bash"], include_str!("../snippets/shell.toml")),
    (&["r"], include_str!("../snippets/r.toml")),
    (&["node", "javascript"], include_str!("../snippets/node.toml")),
    (&["pyodide"], include_str!("../snippets/pyodide.toml")),
    (&["jupyter-python"], include_str!("../snippets/jupyter-python.toml")),
    (&["perl"], include_str!("../snippets/perl.toml")),
];

impl SnippetSet {
    /// The built-in set of this name.
    pub fn built_in(name: &str) -> Option<Self> {
        let name = name.to_lowercase();
        let (_, text) = BUILT_IN.iter().find(|(names, _)| names.contains(&name.as_str()))?;
        Some(Self::parse(text).expect("the tests parse every built-in file"))
    }

    /// The names of the built-in sets, for people.
    pub fn built_in_names() -> String {
        let names: Vec<&str> = BUILT_IN.iter().map(|(names, _)| names[0]).collect();
        names.join(", ")
    }

    pub fn parse(text: &str) -> Result<Self, SnippetError> {
        let document: DocumentMut = text.parse()?;
        let language = document.get("language").and_then(|item| item.as_str());
        let language = language.ok_or(SnippetError::NoLanguage)?.to_owned();
        let table = document.get("snippets").and_then(|item| item.as_table());
        let mut snippets = BTreeMap::new();
        for (name, item) in table.ok_or(SnippetError::NoTable)? {
            if !SNIPPETS.iter().any(|(known, _)| *known == name) {
                return Err(SnippetError::Unknown { name: name.to_owned() });
            }
            let code = item.as_str().ok_or_else(|| SnippetError::NoText(name.to_owned()))?;
            snippets.insert(name.to_owned(), code.to_owned());
        }
        Ok(Self { language, snippets })
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.snippets.get(name).map(String::as_str)
    }
}

fn names() -> String {
    let names: Vec<&str> = SNIPPETS.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_set_is_valid_and_prints() {
        for (names, text) in BUILT_IN {
            let set = SnippetSet::parse(text).unwrap_or_else(|error| panic!("{names:?}: {error}"));
            assert!(set.get("print").is_some(), "{names:?}");
            assert_eq!(SnippetSet::built_in(names[0]), Some(set));
        }
        assert_eq!(SnippetSet::built_in("cobol"), None);
    }

    #[test]
    fn a_wrong_file_is_refused_by_name() {
        for (text, error) in [
            ("language", "the file is not TOML"),
            ("[snippets]\nprint = 'x'", "the file has no text `language`"),
            ("language = 'L'", "the file has no table"),
            ("language = 'L'\n[snippets]\nprint = 1", "the snippet `print` is not a text"),
            (
                "language = 'L'\n[snippets]\nprnt = 'x'",
                "there is no snippet `prnt`; the snippets are",
            ),
        ] {
            let told = SnippetSet::parse(text).unwrap_err().to_string();
            assert!(told.starts_with(error), "{text}: {told}");
        }
    }
}
