//! Whether what was typed so far is a whole piece of code, by the simple rules that a person
//! typing expects: brackets and quotes are closed, no line ends in a colon or a backslash, and an
//! indented block ends with an empty line. What the language itself thinks of it, the worker
//! says.

use windlass_protocol::kinds::TypedInput;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    Complete,
    Unfinished,
}

/// Checks by the rules of a language. `source` is all lines typed so far, without the last line's end.
pub fn check(rules: TypedInput, source: &str) -> Input {
    match rules {
        TypedInput::IndentedBlocks => indented_blocks(source),
    }
}

fn indented_blocks(source: &str) -> Input {
    let Some(last) = source.lines().last() else { return Input::Complete };
    // An empty line typed last: `lines` does not show it.
    let ends_empty = source.ends_with('\n') || last.trim().is_empty();
    let scan = Scan::of(source);
    if scan.open_brackets > 0 || scan.open_quote || scan.continued {
        return Input::Unfinished;
    }
    if ends_empty {
        return Input::Complete;
    }
    let indented = last.starts_with([' ', '\t']) && source.lines().count() > 1;
    let decorator = last.trim_start().starts_with('@');
    if scan.ends_in_colon || indented || decorator {
        return Input::Unfinished;
    }
    Input::Complete
}

/// What is still open at the end of some source.
#[derive(Debug, Default)]
struct Scan {
    open_brackets: usize,
    /// Inside a triple-quoted string.
    open_quote: bool,
    /// The last line ends in a backslash.
    continued: bool,
    /// The last thing outside comments and strings is a colon.
    ends_in_colon: bool,
}

impl Scan {
    fn of(source: &str) -> Self {
        let mut scan = Self::default();
        let mut rest = source;
        while let Some(next) = rest.chars().next() {
            rest = match next {
                '#' => &rest[rest.find('\n').unwrap_or(rest.len())..],
                '\'' | '"' => scan.string(rest, next),
                _ => {
                    scan.plain(next, rest);
                    &rest[next.len_utf8()..]
                }
            };
        }
        scan
    }

    fn plain(&mut self, next: char, rest: &str) {
        match next {
            '(' | '[' | '{' => self.open_brackets += 1,
            ')' | ']' | '}' => self.open_brackets = self.open_brackets.saturating_sub(1),
            '\\' => self.continued = matches!(&rest[1..], "" | "\n"),
            _ => {}
        }
        if !next.is_whitespace() {
            self.ends_in_colon = next == ':' && self.open_brackets == 0;
        }
    }

    /// Passes over a string; what follows it is given back.
    fn string<'a>(&mut self, rest: &'a str, quote: char) -> &'a str {
        self.ends_in_colon = false;
        let triple: String = [quote; 3].iter().collect();
        let (mut inside, closing, is_triple) = match rest.strip_prefix(&triple) {
            Some(inside) => (inside, triple.as_str(), true),
            None => (&rest[1..], &triple[..1], false),
        };
        loop {
            if let Some(after) = inside.strip_prefix(closing) {
                return after;
            }
            let mut characters = inside.chars();
            match characters.next() {
                None => {
                    self.open_quote = is_triple;
                    return "";
                }
                // A quote left open at its line's end is an error: the worker says so.
                Some('\n') if !is_triple => return inside,
                Some('\\') => {
                    if characters.next().is_none() {
                        self.continued = true;
                    }
                }
                Some(_) => {}
            }
            inside = characters.as_str();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_inputs_are_complete() {
        for source in [
            "",
            "1 + 1",
            "f(1, [2, {3: 4}])",
            "'a(b' + \"[\"",
            "x = 'it\\'s'",
            "'''a\nb'''",
            "# if x:",
            "x = 1  # (",
            "if x: pass",
            "if x:\n    y\n",
            "def f():\n    return 1\n    ",
            "class A:\n    def f(self):\n        pass\n",
            "for x in y:\n    z\nprint(x)",
            "x = {\n  'a': 1,\n}",
            "y = 1 + \\\n2",
            "'open",
            ")",
            "x[1:2]",
            "lambda: 0",
            " 1",
            "f'{x:>3}'",
        ] {
            assert_eq!(indented_blocks(source), Input::Complete, "{source:?}");
        }
    }

    #[test]
    fn open_inputs_ask_for_more() {
        for source in [
            "f(1,",
            "x = [",
            "'''a\nb",
            "x = \"\"\"\n",
            "def f():",
            "if x:  # why",
            "if x:\n    y",
            "if x:\n    y\nelse:",
            "@decorator",
            "y = 1 + \\",
            "x = {\n  'a': 1,\n",
            "'a\\",
            "def f(\n    a,\n):",
            "f('a)', (",
        ] {
            assert_eq!(indented_blocks(source), Input::Unfinished, "{source:?}");
        }
    }
}
