//! The shell: an input is complete if quotes, here-documents, brackets and compound commands are closed and
//! the last line does not end in a pipe, `&&`, `||` or a backslash.

use super::Completeness;

/// Words that open a compound command, and the word that closes each.
const COMPOUND: [(&str, &str); 4] = [("if", "fi"), ("do", "done"), ("case", "esac"), ("{", "}")];

pub(super) fn check(source: &str) -> Completeness {
    let mut scan = ShellScan::default();
    let mut lines = source.split('\n');
    while let Some(line) = lines.next() {
        scan.line(line);
        for end in std::mem::take(&mut scan.here_documents) {
            // The lines of a here-document are text, up to its end word.
            if !lines.any(|text| text.trim_start_matches('\t') == end) {
                return Completeness::Unfinished;
            }
        }
    }
    match scan.quote.is_some() || scan.continued || !scan.open.is_empty() || scan.parentheses > 0 {
        true => Completeness::Unfinished,
        false => Completeness::Complete,
    }
}

/// What is open after the lines so far.
#[derive(Debug, Default)]
struct ShellScan {
    quote: Option<char>,
    parentheses: usize,
    /// The closing words of the compound commands that are open.
    open: Vec<&'static str>,
    /// End words of here-documents that begin after this line.
    here_documents: Vec<String>,
    /// The last line goes on: it ends in a backslash or an operator.
    continued: bool,
}

impl ShellScan {
    fn line(&mut self, line: &str) {
        let mut word = String::new();
        let mut at_command = self.quote.is_none();
        let mut characters = line.chars().peekable();
        let mut code = String::new();
        while let Some(next) = characters.next() {
            if let Some(quote) = self.quote {
                match next {
                    '\\' if quote == '"' => drop(characters.next()),
                    _ if next == quote => self.quote = None,
                    _ => {}
                }
                continue;
            }
            code.push(next);
            match next {
                '\\' => {
                    if let Some(escaped) = characters.next() {
                        code.push(escaped);
                        word.push(escaped);
                    }
                }
                '\'' | '"' | '`' => {
                    self.quote = Some(next);
                    word.push(next);
                }
                '#' if word.is_empty() => {
                    code.pop();
                    break;
                }
                '(' | ')' => {
                    self.end_word(&mut word, &mut at_command);
                    self.parentheses = match next {
                        '(' => self.parentheses + 1,
                        _ => self.parentheses.saturating_sub(1),
                    };
                    at_command = true;
                }
                ';' | '&' | '|' => {
                    self.end_word(&mut word, &mut at_command);
                    at_command = true;
                }
                '<' if characters.peek() == Some(&'<') => {
                    characters.next();
                    let rest: String = characters.clone().collect();
                    self.here_document(&rest);
                }
                _ if next.is_whitespace() => self.end_word(&mut word, &mut at_command),
                _ => word.push(next),
            }
        }
        self.end_word(&mut word, &mut at_command);
        let code = code.trim_end();
        let ends = |operator: &str| code.ends_with(operator);
        let backslashes = line.chars().rev().take_while(|last| *last == '\\').count();
        self.continued = self.quote.is_none() && (backslashes % 2 == 1 || ends("|") || ends("&&"));
    }

    /// Counts a word that opens or closes a compound command. Such words stand where a command begins.
    fn end_word(&mut self, word: &mut String, at_command: &mut bool) {
        if word.is_empty() {
            return;
        }
        let opens = COMPOUND.iter().find(|(opening, _)| opening == word);
        let is_case = self.open.last() == Some(&"esac");
        match opens {
            Some((_, closing)) if *at_command => self.open.push(closing),
            _ if *at_command && self.open.last() == Some(&word.as_str()) => drop(self.open.pop()),
            _ => {}
        }
        let leads = ["if", "then", "elif", "else", "while", "until", "do", "!", "{", "time"];
        *at_command = (*at_command && leads.contains(&word.as_str())) || (is_case && word == "in");
        word.clear();
    }

    /// Remembers the end word after `<<`, unless it is a here-string (`<<<`).
    fn here_document(&mut self, rest: &str) {
        if rest.starts_with('<') {
            return;
        }
        let rest = rest.trim_start_matches('-').trim_start();
        let end =
            rest.split(|next: char| next.is_whitespace() || matches!(next, ';' | '&' | '|' | ')'));
        let end = end.into_iter().next().unwrap_or_default().replace(['\'', '"', '\\'], "");
        if !end.is_empty() && !end.starts_with('(') {
            self.here_documents.push(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_commands_are_complete() {
        for source in [
            "",
            "ls -l",
            "echo 'a b' \"c\"",
            "for x in 1 2; do echo $x; done",
            "if true; then\n  echo if\nfi",
            "while read x; do :; done < file",
            "f() { echo a; }",
            "cat <<EOF\nif\nEOF",
            "cat <<-'E'\n\tx\n\tE",
            "grep x <<< 'a'",
            "case $x in\n a) echo;;\nesac",
            "echo do if case",
            "make && make test",
            "sleep 1 &",
            "echo $(date)",
            "a \\\nb",
            "# if",
        ] {
            assert_eq!(check(source), Completeness::Complete, "{source:?}");
        }
    }

    #[test]
    fn open_commands_are_unfinished() {
        for source in [
            "echo 'a",
            "echo \"a\nb",
            "for x in 1 2; do",
            "if true; then\n echo",
            "f() {",
            "cat <<EOF\na",
            "ls |",
            "make &&",
            "make ||",
            "a \\",
            "echo $(date",
            "case $x in",
            "while :\ndo",
        ] {
            assert_eq!(check(source), Completeness::Unfinished, "{source:?}");
        }
    }
}
