//! Decides whether the typed lines are a complete input, by simple rules for each family of languages. The
//! worker reports syntax errors.

mod brackets;
mod shell;

use windlass_protocol::kinds::TypedInput;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    Complete,
    Unfinished,
}

/// Checks by the rules of a language. `source` has all lines typed so far, without the last newline.
pub fn check(rules: TypedInput, source: &str) -> Completeness {
    match rules {
        TypedInput::IndentedBlocks => indented_blocks(source),
        TypedInput::Brackets => brackets::check(source),
        TypedInput::Shell => shell::check(source),
        TypedInput::Lines => Completeness::Complete,
    }
}

/// Brackets and quotes are closed, the last line does not end in a colon or a backslash, and an empty line
/// ends an indented block.
fn indented_blocks(source: &str) -> Completeness {
    let Some(last) = source.lines().last() else { return Completeness::Complete };
    // `lines` does not return an empty last line.
    let ends_empty = source.ends_with('\n') || last.trim().is_empty();
    let scan = Scan::of(source);
    if scan.open_brackets > 0 || scan.open_quote || scan.continued {
        return Completeness::Unfinished;
    }
    if ends_empty {
        return Completeness::Complete;
    }
    let indented = last.starts_with([' ', '\t']) && source.lines().count() > 1;
    let decorator = last.trim_start().starts_with('@');
    if scan.ends_in_colon || indented || decorator {
        return Completeness::Unfinished;
    }
    Completeness::Complete
}

/// What is still open at the end of the source.
#[derive(Debug, Default)]
struct Scan {
    open_brackets: usize,
    /// Inside a triple-quoted string.
    open_quote: bool,
    /// The last line ends in a backslash.
    continued: bool,
    /// The last character outside comments and strings is a colon.
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

    /// Skips a string literal and returns the rest of the source.
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
                // A quote that is open at the end of its line is an error, which the worker reports.
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
            assert_eq!(indented_blocks(source), Completeness::Complete, "{source:?}");
        }
    }

    #[test]
    fn open_inputs_are_unfinished() {
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
            assert_eq!(indented_blocks(source), Completeness::Unfinished, "{source:?}");
        }
    }
}
