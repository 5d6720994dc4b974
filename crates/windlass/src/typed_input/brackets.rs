//! Languages with brackets, like R and JavaScript: an input is complete if brackets, quotes and comments are
//! closed and the last line does not end in an operator.

use super::Completeness;

/// An input that ends in one of these goes on in the next line.
const OPERATORS: [char; 14] =
    ['+', '-', '*', '/', '^', '&', '|', '=', '<', '>', ',', '~', '%', '\\'];

/// Endings that are complete although their last character is an operator.
const COMPLETE_ENDS: [&str; 2] = ["++", "--"];

pub(super) fn check(source: &str) -> Completeness {
    let mut open = 0_usize;
    let mut last = String::new();
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        if next == '#' || rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
            continue;
        }
        if let Some(comment) = rest.strip_prefix("/*") {
            let Some(end) = comment.find("*/") else { return Completeness::Unfinished };
            rest = &comment[end + 2..];
            continue;
        }
        if matches!(next, '"' | '\'' | '`') {
            last = next.to_string();
            match after_string(&rest[1..], next) {
                Some(after) => rest = after,
                None => return Completeness::Unfinished,
            }
            continue;
        }
        match next {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            _ => {}
        }
        match next.is_whitespace() {
            true if next == '\n' || last.is_empty() => {}
            true => last.push(' '),
            false => last.push(next),
        }
        rest = &rest[next.len_utf8()..];
    }
    let end = last.trim_end();
    let goes_on =
        end.ends_with(OPERATORS) && !COMPLETE_ENDS.iter().any(|whole| end.ends_with(whole));
    // An empty line ends an input that seems to go on.
    match open > 0 || (goes_on && !source.ends_with('\n')) {
        true => Completeness::Unfinished,
        false => Completeness::Complete,
    }
}

/// What follows a string. `None` if the string is open at the end.
fn after_string(inside: &str, quote: char) -> Option<&str> {
    let mut characters = inside.chars();
    loop {
        match characters.next()? {
            '\\' => {
                characters.next();
            }
            next if next == quote => return Some(characters.as_str()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_quotes_and_operators_decide() {
        for (source, expected) in [
            ("1 + 1", Completeness::Complete),
            ("f <- function(x) {", Completeness::Unfinished),
            ("f <- function(x) {\n  x\n}", Completeness::Complete),
            ("x <-", Completeness::Unfinished),
            ("df %>%", Completeness::Unfinished),
            ("a |>", Completeness::Unfinished),
            ("a |>\n", Completeness::Complete),
            ("'it\\'s'", Completeness::Complete),
            ("`a\n${b}", Completeness::Unfinished),
            ("// f(", Completeness::Complete),
            ("# f(", Completeness::Complete),
            ("/* a", Completeness::Unfinished),
            ("i++", Completeness::Complete),
            ("const f = (a) =>", Completeness::Unfinished),
            ("f(')')", Completeness::Complete),
            ("", Completeness::Complete),
        ] {
            assert_eq!(check(source), expected, "{source:?}");
        }
    }
}
