//! Splits a Markdown page into blocks: headings, paragraphs, list items, tables and code fences, each with
//! its line. It supports only the Markdown that the pages of this repository use.

/// The kind of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Heading,
    Paragraph,
    /// One paragraph of a list item.
    Item,
    Table,
    /// A code fence with its info string, such as `mermaid`.
    Fence(String),
    /// HTML, comments and definitions of links: not prose.
    Markup,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Block<'a> {
    pub kind: Kind,
    /// The number of the first line, from 1.
    pub line: usize,
    /// The lines without indentation and quote marks. The lines of a fence are unchanged, without the fence
    /// marks.
    pub lines: Vec<&'a str>,
}

impl Block<'_> {
    /// The length of the prose as one line. A link counts with its text only.
    pub fn chars(&self) -> usize {
        let text = self.lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        without_targets(&text).chars().count()
    }
}

pub fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut reader = Reader::default();
    for (index, line) in text.lines().enumerate() {
        reader.read(index + 1, line);
    }
    reader.end_block();
    reader.blocks
}

#[derive(Default)]
struct Reader<'a> {
    blocks: Vec<Block<'a>>,
    open: Option<Block<'a>>,
    /// The marks that end the open fence.
    fence: Option<&'a str>,
    /// Whether an HTML comment is open.
    is_comment: bool,
    is_list: bool,
}

impl<'a> Reader<'a> {
    fn read(&mut self, number: usize, whole: &'a str) {
        let line = whole.trim().trim_start_matches("> ").trim_start();
        if let Some(marks) = self.fence {
            if line.starts_with(marks) && line.trim_start_matches(&marks[..1]).is_empty() {
                self.fence = None;
                self.end_block();
            } else if let Some(open) = &mut self.open {
                open.lines.push(whole);
            }
            return;
        }
        if self.is_comment || line.starts_with("<!--") {
            self.end_block();
            self.is_comment = !line.contains("-->");
            return self.add_alone(Kind::Markup, number, line);
        }
        if let Some(marks) = fence_marks(line) {
            self.end_block();
            self.fence = Some(marks);
            let info = line[marks.len()..].trim().to_owned();
            self.open = Some(Block { kind: Kind::Fence(info), line: number + 1, lines: vec![] });
            return;
        }
        if line.is_empty() || line == ">" {
            return self.end_block();
        }
        let is_indented = whole.starts_with(' ');
        if line.starts_with('#') && line.trim_start_matches('#').starts_with(' ') {
            self.is_list = false;
            self.end_block();
            return self.add_alone(Kind::Heading, number, line);
        }
        if let Some(text) = item_text(line) {
            self.end_block();
            self.is_list = true;
            self.open = Some(Block { kind: Kind::Item, line: number, lines: vec![text] });
            return;
        }
        let kind = match line {
            line if line.starts_with('|') => Kind::Table,
            line if line.starts_with('<') && !line.starts_with("<http") => Kind::Markup,
            line if line.starts_with('[') && line.contains("]: ") => Kind::Markup,
            _ if self.is_list && is_indented => Kind::Item,
            _ => Kind::Paragraph,
        };
        self.add(kind, number, line);
    }

    /// Adds a line to the open block, if the block continues.
    fn add(&mut self, kind: Kind, line: usize, text: &'a str) {
        match &mut self.open {
            // Prose continues until a blank line, even without the indentation of its list item.
            Some(open)
                if open.kind == kind || (open.kind == Kind::Item && kind == Kind::Paragraph) =>
            {
                open.lines.push(text);
            }
            _ => {
                self.end_block();
                self.is_list &= kind != Kind::Paragraph;
                self.open = Some(Block { kind, line, lines: vec![text] });
            }
        }
    }

    fn add_alone(&mut self, kind: Kind, line: usize, text: &'a str) {
        self.blocks.push(Block { kind, line, lines: vec![text] });
    }

    fn end_block(&mut self) {
        self.blocks.extend(self.open.take());
    }
}

/// The marks that open a fence: three backquotes or tildes, or more.
fn fence_marks(line: &str) -> Option<&str> {
    let mark = line.chars().next().filter(|first| "`~".contains(*first))?;
    let count = line.chars().take_while(|c| *c == mark).count();
    let (marks, info) = line.split_at(count);
    (count >= 3 && !info.contains('`')).then_some(marks)
}

/// The text after a list item's marker: `-`, `*`, `+`, `1.` or `1)`.
fn item_text(line: &str) -> Option<&str> {
    let (marker, text) = line.split_once(' ')?;
    let number = marker.strip_suffix(['.', ')']).unwrap_or_default();
    let is_number = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit());
    (is_number || ["-", "*", "+"].contains(&marker)).then(|| text.trim_start())
}

/// The text with `[text](target)` and `[text][name]` replaced by `text`. Code is left as it is.
fn without_targets(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    let mut is_code = false;
    while let Some(next) = rest.chars().next() {
        is_code ^= next == '`';
        let target = (!is_code).then(|| target_after(rest)).flatten();
        if let Some(length) = target {
            rest = &rest[length..];
            continue;
        }
        let opens_a_link = next == '[' && !is_code && is_link(rest);
        if !opens_a_link {
            shown.push(next);
        }
        rest = &rest[next.len_utf8()..];
    }
    shown
}

/// The length of `](target)` or `][name]` at the start of the text.
fn target_after(text: &str) -> Option<usize> {
    let end = match text.as_bytes() {
        [b']', b'(', ..] => ')',
        [b']', b'[', ..] => ']',
        _ => return None,
    };
    text[2..].find(end).map(|at| at + 3)
}

/// Whether the bracket at the start opens the text of a link.
fn is_link(text: &str) -> bool {
    text.find(']').is_some_and(|at| target_after(&text[at..]).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let show = |block: &Block<'_>| {
            format!("{} {:?} {}", block.line, block.kind, block.lines.join("/"))
        };
        blocks(text).iter().map(show).collect()
    }

    #[test]
    fn blocks_have_their_kind_and_line() {
        let text = "# Title\nOne\ntwo\n\n- a\n  b\n- c\nlazy\n\n  second of c\n\nafter\n| x |\n| y |\n\
                    <!-- no\n\nprose -->\n> quoted\n>\n> more\n1. first\n";
        assert_eq!(
            shown(text),
            [
                "1 Heading # Title",
                "2 Paragraph One/two",
                "5 Item a/b",
                "7 Item c/lazy",
                "10 Item second of c",
                "12 Paragraph after",
                "13 Table | x |/| y |",
                "15 Markup <!-- no",
                "16 Markup ",
                "17 Markup prose -->",
                "18 Paragraph quoted",
                "20 Paragraph more",
                "21 Item first",
            ]
        );
    }

    #[test]
    fn a_fence_is_one_block() {
        let text = "a\n```mermaid\n# no heading\n\n  b\n```\n````\n```\n````\n- x\n  ~~~ sh\n  c\n  ~~~\nz";
        assert_eq!(
            shown(text),
            [
                "1 Paragraph a",
                "3 Fence(\"mermaid\") # no heading//  b",
                "8 Fence(\"\") ```",
                "10 Item x",
                "12 Fence(\"sh\")   c",
                "14 Paragraph z",
            ]
        );
    }

    #[test]
    fn links_count_by_their_text() {
        for (text, expected) in [
            ("see [the page](docs/page.md#part) now", "see the page now"),
            ("[a][b], [c], ![d](e.png)", "a, [c], !d"),
            ("`[a](b)` and [`code`](x.md)", "`[a](b)` and `code`"),
            ("it is [not a link] (here)", "it is [not a link] (here)"),
        ] {
            assert_eq!(without_targets(text), expected);
        }
        assert_eq!(blocks("one\n  two")[0].chars(), 7);
    }
}
