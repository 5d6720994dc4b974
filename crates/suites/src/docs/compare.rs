//! Compares the output that a page shows with the real one. Ids, numbers and paths may differ.

/// Length of the id that a node gives a session, with the `s` at its begin.
const SESSION_ID_LETTERS: usize = 11;

/// The first difference, or `None`. Empty lines do not count. A word with a digit or a slash, or a session id, matches any
/// other such word. A line `...` stands for any number of lines, and a word that ends with `...` for the rest of its line.
pub fn difference(shown: &str, real: &str) -> Option<String> {
    let (mut shown, mut real) = (lines(shown).peekable(), lines(real).peekable());
    while let Some(line) = shown.next() {
        if line.trim() == "..." {
            let next = shown.peek()?;
            while real.peek().is_some_and(|line| !is_like(next, line)) {
                real.next();
            }
            continue;
        }
        match real.next() {
            Some(printed) if is_like(line, printed) => {}
            printed => {
                let printed = printed.unwrap_or("(nothing)");
                return Some(format!("the page has: {line}\nthe run has:  {printed}"));
            }
        }
    }
    real.next().map(|line| format!("the page has: (nothing)\nthe run has:  {line}"))
}

/// Lines with text.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim().is_empty())
}

fn is_like(shown: &str, real: &str) -> bool {
    let (shown, real): (Vec<&str>, Vec<&str>) =
        (shown.split_whitespace().collect(), real.split_whitespace().collect());
    let pairs = shown.iter().zip(&real);
    let cut = shown.last().is_some_and(|last| last.ends_with("..."));
    let fits = if cut { real.len() + 1 >= shown.len() } else { real.len() == shown.len() };
    let mut whole = pairs.take(if cut { shown.len() - 1 } else { shown.len() });
    fits && whole.all(|(shown, real)| shown == real || (varies(shown) && varies(real)))
}

fn varies(word: &str) -> bool {
    word.contains(|letter: char| letter.is_ascii_digit() || letter == '/') || is_session_id(word)
}

/// One in eighteen of the random ids has no digit.
fn is_session_id(word: &str) -> bool {
    let word = word.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
    let is_of_id = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    word.len() == SESSION_ID_LETTERS && word.starts_with('s') && word.chars().all(is_of_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_numbers_and_paths_may_differ_and_nothing_else() {
        for (shown, real, same) in [
            ("pid 17 ready", "pid  4021 ready", true),
            ("pid 17 ready", "pid 17 waiting", false),
            ("in /vol/ada", "in /tmp/x", true),
            ("session sfvktm5vmee stays", "session swehmfwxbvy stays", true),
            ("[sfvktm5vmee 1.1]", "[swehmfwxbvy 1.1]", true),
            ("session sfvktm5vmee stays", "session stays stays", false),
            ("a\n...\nb", "a\nx\ny\nb", true),
            ("a\n...", "a\nx", true),
            ("a\n...\nb", "a\nx", false),
            ("path is refu...", "path is refused: no", true),
            ("a", "a\nb", false),
            ("a\n\nb", "a\nb\n", true),
            ("a\nb", "a", false),
        ] {
            assert_eq!(difference(shown, real).is_none(), same, "{shown} / {real}");
        }
    }
}
