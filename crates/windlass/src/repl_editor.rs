//! What the line editor of `windlass repl` adds to plain editing: completion of words and light colours, for Python.
//! Knows only the text that was typed here, and runs no code.

use std::borrow::Cow;
use std::collections::BTreeSet;

use rustyline::completion::Completer;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};
use windlass_protocol::kinds::TypedInput;

/// Maximum number of remembered words, and the longest one in bytes.
const WORDS_MAX: usize = 10_000;
const WORD_BYTES_MAX: usize = 100;

/// What Tab inserts where only spaces precede it.
const INDENT: &str = "    ";

const KEYWORDS: &str = "False None True and as assert async await break class continue def del elif else except \
                        finally for from global if import in is lambda nonlocal not or pass raise return try while \
                        with yield";

/// Builtins that people type; exceptions and rarely typed ones are left out.
const BUILTINS: &str = "abs all any ascii bin bool breakpoint bytearray bytes callable chr classmethod complex delattr \
                        dict dir divmod enumerate eval exec filter float format frozenset getattr globals hasattr \
                        hash help hex id input int isinstance issubclass iter len list locals map max min next \
                        object oct open ord pow print property range repr reversed round set setattr slice sorted \
                        staticmethod str sum super tuple type vars zip";

/// The helper of the line editor.
#[derive(Debug)]
pub struct ReplEditor {
    language: EditedLanguage,
    names: BTreeSet<String>,
    attributes: BTreeSet<String>,
}

/// Whether the typed language is one that the editor knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EditedLanguage {
    Python,
    Other,
}

impl ReplEditor {
    pub fn new(rules: TypedInput) -> Self {
        let language = match rules {
            TypedInput::IndentedBlocks => EditedLanguage::Python,
            TypedInput::Brackets | TypedInput::Shell | TypedInput::Lines => EditedLanguage::Other,
        };
        Self { language, names: BTreeSet::new(), attributes: BTreeSet::new() }
    }

    /// Remembers the names and attributes of an input, for completion.
    pub fn remember(&mut self, source: &str) {
        let mut after_dot = false;
        for SourceToken { kind, text } in Tokens(source) {
            if kind == TokenKind::Name && text.len() <= WORD_BYTES_MAX {
                let words = if after_dot { &mut self.attributes } else { &mut self.names };
                if words.len() < WORDS_MAX {
                    words.insert(text.to_owned());
                }
            }
            after_dot = text == ".";
        }
    }

    /// Where the word before `pos` starts, and the words that it could become.
    fn candidates(&self, line: &str, pos: usize) -> (usize, Vec<String>) {
        let before = &line[..pos];
        if before.trim().is_empty() {
            return (pos, vec![INDENT.to_owned()]);
        }
        let start = before.trim_end_matches(is_word).len();
        let (word, is_attribute) = (&before[start..], before[..start].ends_with('.'));
        let starts = |known: &&str| known.starts_with(word) && *known != word;
        if is_attribute {
            let found = self.attributes.iter().map(String::as_str).filter(starts);
            return (start, found.map(str::to_owned).collect());
        }
        if word.is_empty() {
            return (start, Vec::new());
        }
        let known = match self.language {
            EditedLanguage::Python => [KEYWORDS, BUILTINS],
            EditedLanguage::Other => ["", ""],
        };
        let known = known.into_iter().flat_map(str::split_ascii_whitespace);
        let found: BTreeSet<&str> =
            known.chain(self.names.iter().map(String::as_str)).filter(starts).collect();
        (start, found.into_iter().map(str::to_owned).collect())
    }
}

/// The line with colours.
fn painted(line: &str) -> String {
    let mut painted = String::with_capacity(line.len() + 64);
    for SourceToken { kind, text } in Tokens(line) {
        let colour = match kind {
            TokenKind::Name if KEYWORDS.split_ascii_whitespace().any(|one| one == text) => "35",
            TokenKind::String => "32",
            TokenKind::Number => "36",
            TokenKind::Comment => "2",
            TokenKind::Name | TokenKind::Other => {
                painted.push_str(text);
                continue;
            }
        };
        painted.push_str(&format!("\x1b[{colour}m{text}\x1b[0m"));
    }
    painted
}

impl Helper for ReplEditor {}
impl Validator for ReplEditor {}
impl Hinter for ReplEditor {
    type Hint = String;
}

impl Completer for ReplEditor {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.candidates(line, pos))
    }
}

/// The editor calls this only if it shows colours: at a terminal, and without `NO_COLOR`.
impl Highlighter for ReplEditor {
    fn highlight<'l>(&self, line: &'l str, _pos: usize) -> Cow<'l, str> {
        match self.language {
            EditedLanguage::Python => Cow::Owned(painted(line)),
            EditedLanguage::Other => Cow::Borrowed(line),
        }
    }

    fn highlight_char(&self, _line: &str, _pos: usize, kind: CmdKind) -> bool {
        self.language == EditedLanguage::Python && kind != CmdKind::MoveCursor
    }
}

/// A piece of Python source. All pieces together are the source.
#[derive(Debug)]
struct SourceToken<'s> {
    kind: TokenKind,
    text: &'s str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Name,
    Number,
    String,
    Comment,
    /// One character.
    Other,
}

/// Splits source into tokens.
struct Tokens<'s>(&'s str);

impl<'s> Iterator for Tokens<'s> {
    type Item = SourceToken<'s>;

    fn next(&mut self) -> Option<SourceToken<'s>> {
        let source = self.0;
        let first = source.chars().next()?;
        let (kind, length) = match first {
            '#' => (TokenKind::Comment, source.find('\n').unwrap_or(source.len())),
            '"' | '\'' => (TokenKind::String, string_length(source, first)),
            _ if first.is_ascii_digit() => {
                let is_number = |c: char| is_word(c) || c == '.';
                (TokenKind::Number, source.find(|c: char| !is_number(c)).unwrap_or(source.len()))
            }
            _ if is_word(first) => {
                let length = source.find(|c: char| !is_word(c)).unwrap_or(source.len());
                let (word, rest) = source.split_at(length);
                match rest.chars().next() {
                    Some(quote @ ('"' | '\'')) if is_string_prefix(word) => {
                        (TokenKind::String, length + string_length(rest, quote))
                    }
                    _ => (TokenKind::Name, length),
                }
            }
            _ => (TokenKind::Other, first.len_utf8()),
        };
        let (text, rest) = source.split_at(length);
        self.0 = rest;
        Some(SourceToken { kind, text })
    }
}

/// The length in bytes of the string literal at the start of `source`. A literal that is not closed ends with its line,
/// or with the source if it has triple quotes.
fn string_length(source: &str, quote: char) -> usize {
    let triple: String = [quote; 3].iter().collect();
    let closing = if source.starts_with(&triple) { &triple[..] } else { &triple[..1] };
    let mut at = closing.len();
    while let Some(next) = source[at..].chars().next() {
        if source[at..].starts_with(closing) {
            return at + closing.len();
        }
        if next == '\n' && closing.len() == 1 {
            return at;
        }
        at += next.len_utf8();
        if next == '\\' {
            at += source[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    at
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_string_prefix(word: &str) -> bool {
    word.len() <= 2 && word.chars().all(|c| "rRbBfFuUtT".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_completed_by_keywords_builtins_and_what_was_typed() {
        let mut editor = ReplEditor::new(TypedInput::IndentedBlocks);
        editor.remember("price_list = shop.prices(1)  # prose\nname = 'privately'");
        for (line, start, expected) in [
            ("pri", 0, vec!["price_list", "print"]),
            ("x = (pri", 5, vec!["price_list", "print"]),
            ("shop.pri", 5, vec!["prices"]),
            ("shop.", 5, vec!["prices"]),
            ("wh", 0, vec!["while"]),
            ("while", 0, vec![]),
            ("x = ", 4, vec![]),
            ("é + pro", 5, vec!["property"]),
            ("", 0, vec![INDENT]),
            ("  ", 2, vec![INDENT]),
        ] {
            let expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
            assert_eq!(editor.candidates(line, line.len()), (start, expected), "{line:?}");
        }
        let mut shell = ReplEditor::new(TypedInput::Shell);
        shell.remember("files=1");
        assert_eq!(shell.candidates("fi", 2).1, ["files"]);
        assert_eq!(shell.candidates("pri", 3).1, Vec::<String>::new());
    }

    #[test]
    fn the_number_and_size_of_remembered_words_are_bounded() {
        let mut editor = ReplEditor::new(TypedInput::IndentedBlocks);
        editor.remember(&"x".repeat(WORD_BYTES_MAX + 1));
        assert!(editor.names.is_empty());
        let many: Vec<String> = (0..=WORDS_MAX).map(|number| format!("n{number}")).collect();
        editor.remember(&many.join(" "));
        assert_eq!(editor.names.len(), WORDS_MAX);
    }

    #[test]
    fn keywords_strings_numbers_and_comments_have_colours() {
        for (line, expected) in [
            ("x = 1", "x = <36>1</>"),
            ("if x: y", "<35>if</> x: y"),
            ("iffy", "iffy"),
            ("f'a{b}' + rb\"c\"", "<32>f'a{b}'</> + <32>rb\"c\"</>"),
            ("'it\\'s' or 'open", "<32>'it\\'s'</> <35>or</> <32>'open</>"),
            ("'''a 'b' ''' # if", "<32>'''a 'b' '''</> <2># if</>"),
            ("'\\", "<32>'\\</>"),
            ("é.x1 # é", "é.x1 <2># é</>"),
        ] {
            let mut shown = painted(line).replace("\x1b[0m", "</>");
            for code in ["2", "32", "35", "36"] {
                shown = shown.replace(&format!("\x1b[{code}m"), &format!("<{code}>"));
            }
            assert_eq!(shown, expected);
        }
    }
}
