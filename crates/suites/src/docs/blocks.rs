//! The fenced blocks of a Markdown page, and the comments before them that say how they are run:
//!
//! - `<!-- not run: REASON -->`: the block is skipped and counted, with the reason;
//! - `<!-- before: COMMANDS -->`: shell commands that run before the block, which the page need not show;
//! - `<!-- setup: CODE -->`: Python code that runs before the code of the block, in the same program.

use anyhow::{Result, bail};

/// One fenced block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of the opening fence, from 1.
    pub line: usize,
    pub language: String,
    pub text: String,
    pub not_run: Option<String>,
    /// Commands of the comments before the block.
    pub before: String,
    /// Code of the comments before the block.
    pub setup: String,
    /// The next block, if it directly follows: no text is between, and it has no language or is text.
    pub output: Option<String>,
}

impl Block {
    /// Whether the block has commands with their output, as a terminal shows them.
    pub fn is_transcript(&self) -> bool {
        ["", "console"].contains(&self.language.as_str()) && self.text.starts_with("$ ")
    }

    /// The commands of the block. `SESSION` in a command stands for the session in the variable `SESSION`.
    pub fn commands(&self) -> String {
        let text: String = if self.is_transcript() {
            let commands = self.transcript().0;
            // A command may fail, if the page shows so. A line break after each output: some programs print none.
            commands.iter().map(|command| format!("{{ {command}\n}} || true\necho\n")).collect()
        } else {
            self.text.clone()
        };
        let words = text.split_inclusive(|letter: char| letter.is_whitespace());
        words
            .map(|word| match word.strip_prefix("SESSION") {
                Some(rest) if rest.trim().is_empty() => format!("\"$SESSION\"{rest}"),
                _ => word.to_owned(),
            })
            .collect()
    }

    /// What the page shows as output.
    pub fn shown(&self) -> Option<String> {
        if self.is_transcript() { Some(self.transcript().1) } else { self.output.clone() }
    }

    /// The commands of a transcript, and the output that it shows. A command goes on to the line that closes its quotes.
    fn transcript(&self) -> (Vec<String>, String) {
        let (mut commands, mut shown) = (Vec::<String>::new(), String::new());
        let mut is_open = false;
        for line in self.text.lines() {
            match (commands.last_mut().filter(|_| is_open), line.strip_prefix("$ ")) {
                (Some(command), _) => {
                    *command += &format!("\n{line}");
                    is_open ^= line.matches('\'').count() % 2 == 1;
                }
                (None, Some(command)) => {
                    is_open = command.matches('\'').count() % 2 == 1;
                    commands.push(command.to_owned());
                }
                (None, None) => shown += &format!("{line}\n"),
            }
        }
        (commands, shown)
    }
}

/// The blocks of a page. Directives apply to the next block.
pub fn of_page(page: &str) -> Result<Vec<Block>> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut before, mut setup, mut not_run) = (String::new(), String::new(), None);
    // Whether only empty lines were seen since the last block.
    let mut follows = false;
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if let Some(comment) = line.strip_prefix("<!-- ") {
            let mut comment = comment.to_owned();
            while !comment.contains("-->") {
                let Some((_, next)) = lines.next() else {
                    bail!("line {}: the comment has no end", at + 1)
                };
                comment += &format!("\n{next}");
            }
            let comment = comment.split("-->").next().unwrap_or_default().trim();
            if let Some(reason) = comment.strip_prefix("not run:") {
                not_run = Some(reason.trim().to_owned());
            } else if let Some(commands) = comment.strip_prefix("before:") {
                before += &format!("{}\n", commands.trim());
            } else if let Some(code) = comment.strip_prefix("setup:") {
                setup += &format!("{}\n", code.trim());
            }
            follows = false;
            continue;
        }
        let Some(language) = line.strip_prefix("```") else {
            follows &= line.trim().is_empty();
            continue;
        };
        let mut text = String::new();
        loop {
            match lines.next() {
                Some((_, line)) if line.starts_with("```") => break,
                Some((_, line)) => text += &format!("{line}\n"),
                None => bail!("line {}: the block has no end", at + 1),
            }
        }
        let language = language.trim().to_owned();
        let is_output = follows && ["", "text"].contains(&&*language) && !text.starts_with("$ ");
        match blocks.last_mut().filter(|_| is_output) {
            Some(last) if last.output.is_none() => last.output = Some(text),
            _ => blocks.push(Block {
                line: at + 1,
                language,
                text,
                not_run: not_run.take(),
                before: std::mem::take(&mut before),
                setup: std::mem::take(&mut setup),
                output: None,
            }),
        }
        follows = true;
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_directives_commands_and_output() {
        let page = "Text.\n\n<!-- not run: it needs a key -->\n```sh\nfirst\n```\n\n<!-- before:\nmake it\n-->\n\
                    ```sh\nkill SESSION # SESSIONS\n```\n\n```\ngone\n```\n\nText.\n\n```\n$ say a\na\n$ say b\n```\n";
        let blocks = of_page(page).unwrap();
        let lines: Vec<_> = blocks.iter().map(|block| block.line).collect();
        assert_eq!(lines, [4, 11, 21]);
        assert_eq!(blocks[0].not_run.as_deref(), Some("it needs a key"));
        assert_eq!((blocks[1].not_run.as_deref(), &*blocks[1].before), (None, "make it\n"));
        assert_eq!(blocks[1].commands(), "kill \"$SESSION\" # SESSIONS\n");
        assert_eq!(blocks[1].shown().as_deref(), Some("gone\n"));
        assert!(blocks[2].is_transcript());
        assert_eq!(blocks[2].commands(), "{ say a\n} || true\necho\n{ say b\n} || true\necho\n");
        assert_eq!(blocks[2].shown().as_deref(), Some("a\n"));
        assert!(of_page("```sh\nopen").is_err());
    }

    #[test]
    fn a_command_of_a_transcript_ends_with_its_quotes() {
        let page = "```console\n$ say 'a\nb'\na\nb\n```\n";
        let block = of_page(page).unwrap().remove(0);
        assert_eq!(block.commands(), "{ say 'a\nb'\n} || true\necho\n");
        assert_eq!(block.shown().as_deref(), Some("a\nb\n"));
    }

    #[test]
    fn a_python_block_has_its_setup_and_the_text_after_it_as_output() {
        let page = "<!-- setup:\nx = 1\n-->\n```python\nprint(x)\n```\n\n```text\n1\n```\n";
        let block = of_page(page).unwrap().remove(0);
        assert_eq!((&*block.setup, block.output.as_deref()), ("x = 1\n", Some("1\n")));
    }
}
