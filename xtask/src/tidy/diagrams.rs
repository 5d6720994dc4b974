//! Sequence diagrams of the architecture page: each arrow names the function that sends its message,
//! as `(path/from/root.rs function)`, and the function exists. So a diagram cannot outlive the code
//! that it shows.
//!
//! A reference is `name` for any function or method in the file, or `Type::name` for a method in an
//! impl of that type there. In a Python file it is the name of a `def`. Tests do not count.

use syn::visit::{self, Visit};

use super::finding::Finding;
use super::markdown::{self, Block, Kind};
use super::rust::RustFile;
use crate::workspace::SourceFile;

const PAGE: &str = "docs/ARCHITECTURE.md";

/// The diagrams that the page must have, by a word of their titles: the path of a turn, and that of a start.
const TITLE_WORDS: [&str; 2] = ["turn", "start"];

/// What joins two participants, as it is written before the colon of a message.
const ARROWS: [&str; 5] = ["->", "-x", "-)", "-\\", "-/"];

/// Statements that are never messages, even if their text looks like an arrow.
const STATEMENTS: &[&str] = &[
    "accdescr",
    "acctitle",
    "activate",
    "actor",
    "alt",
    "and",
    "autonumber",
    "box",
    "break",
    "create",
    "critical",
    "deactivate",
    "destroy",
    "else",
    "end",
    "link",
    "links",
    "loop",
    "note",
    "opt",
    "option",
    "par",
    "participant",
    "rect",
    "title",
];

const REMEDY: &str =
    "end the arrow with `(path/from/root.rs function)`, the code that sends the message";

/// `files` are the parsed files of the crates; a file that is not among them is read from `sources`.
pub fn check(sources: &[SourceFile], files: &[RustFile]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let page = sources.iter().find(|source| source.path == PAGE);
    let blocks = page.map(|page| markdown::blocks(&page.text)).unwrap_or_default();
    let diagrams: Vec<&Block<'_>> = blocks.iter().filter(|block| is_sequence(block)).collect();
    for diagram in &diagrams {
        for (index, line) in diagram.lines.iter().enumerate() {
            let Some(message) = message_of(line) else { continue };
            if let Err(what) = check_message(message, sources, files) {
                findings.push(Finding::error(PAGE, diagram.line + index, what, REMEDY));
            }
        }
    }
    let is_missing = |word: &&&str| !diagrams.iter().any(|diagram| has_title(diagram, word));
    for word in TITLE_WORDS.iter().filter(is_missing) {
        findings.push(Finding::error(
            PAGE,
            1,
            format!("no sequence diagram has the word `{word}` in its title"),
            "draw that path in a ```mermaid fence that begins with sequenceDiagram",
        ));
    }
    findings
}

/// Whether a block is a mermaid fence whose first statement is `sequenceDiagram`. Comments and the
/// front matter between `---` may come before.
fn is_sequence(block: &Block<'_>) -> bool {
    let mut is_front_matter = false;
    let first = block.lines.iter().map(|line| line.trim()).find(|line| {
        is_front_matter ^= *line == "---";
        !is_front_matter && *line != "---" && !line.is_empty() && !line.starts_with("%%")
    });
    let is_mermaid = block.kind == Kind::Fence("mermaid".to_owned());
    is_mermaid && first.is_some_and(|first| first.starts_with("sequenceDiagram"))
}

/// Whether a line `title ..` or `accTitle: ..` has the word.
fn has_title(diagram: &Block<'_>, word: &str) -> bool {
    diagram.lines.iter().any(|line| {
        let line = line.trim().to_lowercase();
        let is_title =
            ["title ", "title:", "acctitle:"].iter().any(|start| line.starts_with(start));
        is_title && line.split_whitespace().any(|found| found == word)
    })
}

/// The message of an arrow line, empty if it has none. `None` for every other line.
fn message_of(line: &str) -> Option<&str> {
    let line = line.trim();
    let (head, message) = line.split_once(':').unwrap_or((line, ""));
    let first = head.split_whitespace().next().unwrap_or_default().to_lowercase();
    let is_statement = STATEMENTS.contains(&first.as_str()) || line.starts_with("%%");
    let is_arrow = ARROWS.iter().any(|arrow| head.contains(arrow));
    (is_arrow && !is_statement).then(|| message.trim())
}

fn check_message(message: &str, sources: &[SourceFile], files: &[RustFile]) -> Result<(), String> {
    let Some((path, name)) = reference_of(message) else {
        return Err(format!("an arrow without a code reference: {message:?}"));
    };
    let Some(source) = sources.iter().find(|source| source.path == path) else {
        return Err(format!("no file {path}"));
    };
    let is_defined = if source.is_python() {
        defines_python(&source.text, name)
    } else if let Some(file) = files.iter().find(|file| file.path == path) {
        defines(&file.syntax, name)
    } else {
        syn::parse_file(&source.text).is_ok_and(|syntax| defines(&syntax, name))
    };
    if is_defined { Ok(()) } else { Err(format!("{path} defines no function {name}")) }
}

/// Path and function of a message that ends with `(path function)`.
fn reference_of(message: &str) -> Option<(&str, &str)> {
    let (_, reference) = message.strip_suffix(')')?.rsplit_once('(')?;
    let (path, name) = reference.split_once(' ')?;
    let is_code = path.ends_with(".rs") || path.ends_with(".py");
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == ':');
    (is_code && is_name && !name.is_empty()).then_some((path, name))
}

fn defines_python(text: &str, name: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("async ").unwrap_or(line);
        let rest = line.strip_prefix("def ").and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with(['(', '[']))
    })
}

fn defines(syntax: &syn::File, name: &str) -> bool {
    let (of, name) = name.rsplit_once("::").map_or((None, name), |(of, name)| (Some(of), name));
    let mut search = Search { of, name, is_found: false };
    search.visit_file(syntax);
    search.is_found
}

/// Looks for a function, or for a method of a type.
struct Search<'a> {
    of: Option<&'a str>,
    name: &'a str,
    is_found: bool,
}

impl<'ast> Visit<'ast> for Search<'_> {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let is_type = |of: &str| {
            let syn::Type::Path(path) = &*item.self_ty else { return false };
            path.path.segments.last().is_some_and(|segment| segment.ident == of)
        };
        if self.of.is_some_and(is_type) {
            let mut methods = item.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(method) => Some(&method.sig.ident),
                _ => None,
            });
            self.is_found |= methods.any(|method| method == self.name);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.is_found |= self.of.is_none() && signature.ident == self.name;
    }
}

#[cfg(test)]
mod tests {
    use super::super::rust;
    use super::*;

    const CODE: &str = "fn send() {} struct A; struct B; impl A { fn go(&self) {} }
        impl Clone for B { fn clone(&self) -> B { B } } trait T { fn told(); }
        #[cfg(test)] mod tests { fn tested() {} }";

    fn findings(page: &str) -> Vec<String> {
        let source =
            |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
        let sources = [
            source(PAGE, page),
            source("crates/x/src/a.rs", CODE),
            source("workers/w.py", "class W:\n    async def run(self):\n        define = 1\n"),
            source("crates/x/build.rs", "fn build() {}"),
        ];
        let (files, _) = rust::parse(&sources);
        let findings = check(&sources, &files);
        findings.iter().map(|finding| format!("{} {}", finding.line, finding.what)).collect()
    }

    fn page(titles: [&str; 2], lines: &str) -> String {
        let fence = |title: &str, lines: &str| {
            format!("```mermaid\nsequenceDiagram\n{title}\n{lines}\n```\n")
        };
        fence(titles[0], "") + &fence(titles[1], lines)
    }

    const TITLES: [&str; 2] = ["title One turn", "accTitle: One start"];

    #[test]
    fn an_arrow_names_code_that_exists() {
        for line in [
            "A->>B: go (crates/x/src/a.rs send)",
            "A-->>+B: go (crates/x/src/a.rs A::go)",
            "A -) B: go (now) (crates/x/src/a.rs go)",
            "A--xB: go (crates/x/src/a.rs B::clone)",
            "A->B: go (crates/x/src/a.rs told)",
            "A->>B: go (workers/w.py run)",
            "A->>B: go (crates/x/build.rs build)",
            "participant A as a -> b",
            "Note over A,B: a -> b",
            "loop each a->b",
            "%% A->>B: later",
            "end",
        ] {
            assert_eq!(findings(&page(TITLES, line)), [""; 0], "{line}");
        }
        for (line, what) in [
            ("A->>B: go", "an arrow without a code reference: \"go\""),
            ("A-->>B", "an arrow without a code reference: \"\""),
            ("A-)B: go (soon)", "an arrow without a code reference: \"go (soon)\""),
            ("A->>B: go (crates/x/src/b.rs send)", "no file crates/x/src/b.rs"),
            ("A->>B: go (crates/x/src/a.rs sent)", "crates/x/src/a.rs defines no function sent"),
            ("A->>B: x (crates/x/src/a.rs B::go)", "crates/x/src/a.rs defines no function B::go"),
            ("A->>B: x (crates/x/src/a.rs tested)", "crates/x/src/a.rs defines no function tested"),
            ("A->>B: x (workers/w.py ru)", "workers/w.py defines no function ru"),
        ] {
            assert_eq!(findings(&page(TITLES, line)), [format!("9 {what}")], "{line}");
        }
    }

    #[test]
    fn only_sequence_diagrams_are_read() {
        let other = "```mermaid\ngraph TD\nA->>B: go\n```\n```\nsequenceDiagram\nA->>B: go\n```\n";
        assert_eq!(findings(&(page(TITLES, "") + other)), [""; 0]);
        let front = "```mermaid\n---\ntitle: x\n---\n%% y\nsequenceDiagram\nA->>B: go\n```\n";
        assert_eq!(findings(&(page(TITLES, "") + front)).len(), 1);
    }

    #[test]
    fn a_turn_and_a_start_have_a_diagram() {
        for titles in
            [["title One turn", "title Restart"], [TITLES[0], ""], ["A->>B: turn start", ""]]
        {
            let found = findings(&page(titles, ""));
            assert!(found.iter().any(|found| found.starts_with("1 ")), "{titles:?}");
        }
        assert_eq!(findings("").len(), 2);
    }
}
