//! Paragraphs of `README.md`, `CONTRIBUTING.md` and `docs`: a paragraph or list item has at most six lines of
//! 110 columns. Each page starts with a title and a paragraph that says what the page is for. The
//! architecture page has a maximum length.

use super::finding::Finding;
use super::markdown::{self, Kind};
use crate::workspace::SourceFile;

const LINES_MAX: usize = 6;

const COLUMNS: usize = 110;

const CHARS_MAX: usize = LINES_MAX * COLUMNS;

const ARCHITECTURE: &str = "docs/ARCHITECTURE.md";

const ARCHITECTURE_LINES_MAX: usize = 300;

pub fn check(sources: &[SourceFile]) -> Vec<Finding> {
    sources.iter().filter(|source| is_page(&source.path)).flat_map(check_page).collect()
}

fn is_page(path: &str) -> bool {
    ["README.md", "CONTRIBUTING.md"].contains(&path)
        || (path.starts_with("docs/") && path.ends_with(".md"))
}

fn check_page(page: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let blocks = markdown::blocks(&page.text);
    let prose = |kind: &Kind| matches!(kind, Kind::Paragraph | Kind::Item);
    for block in blocks.iter().filter(|block| prose(&block.kind)) {
        let chars = block.chars();
        if chars > CHARS_MAX {
            let lines = chars.div_ceil(COLUMNS);
            findings.push(Finding::error(
                &page.path,
                block.line,
                format!(
                    "a paragraph of {chars} characters, {lines} lines of {COLUMNS} columns; it has \
                     at most {LINES_MAX}"
                ),
                "split it where the subject changes, or make it a list or a table",
            ));
        }
    }
    let mut first = blocks.iter().filter(|block| block.kind != Kind::Markup);
    let (title, opening) = (first.next(), first.next());
    let is_title = title.is_some_and(|block| block.lines[0].starts_with("# "));
    let is_opening = opening.is_some_and(|block| block.kind == Kind::Paragraph);
    if !(is_title && is_opening) {
        findings.push(Finding::error(
            &page.path,
            title.map_or(1, |block| block.line),
            "the page does not begin with a title and a paragraph",
            "write `# Title`, then a paragraph that says what the page covers and for whom",
        ));
    }
    let lines = page.text.lines().count();
    if page.path == ARCHITECTURE && lines > ARCHITECTURE_LINES_MAX {
        findings.push(Finding::error(
            &page.path,
            lines,
            format!("{lines} lines; the page has at most {ARCHITECTURE_LINES_MAX}"),
            "move details of one subject to a page of their own in docs, and link to it",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<String> {
        let source = SourceFile { path: path.to_owned(), text: text.to_owned() };
        let findings = super::check(&[source]);
        findings.iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    #[test]
    fn a_long_paragraph_is_an_error_wherever_its_lines_break() {
        let page = |block: &str| format!("# Title\n\nWhat it is.\n\n{block}\n");
        let (fits, long) = ("a".repeat(660), "a".repeat(661));
        let broken = "four\n".repeat(133);
        for (block, is_long) in [
            (fits.clone(), false),
            (long.clone(), true),
            (broken, true),
            (format!("- {fits}\n- {fits}"), false),
            (format!("1. {long}"), true),
            (format!("```\n{long}\n```"), false),
            (format!("| {long} |"), false),
            (format!("## {long}"), false),
            (format!("[short]({long})"), false),
            (format!("{}\n\n{}", &fits, &fits), false),
        ] {
            let expected: &[&str] = if is_long { &["docs/a.md:5"] } else { &[] };
            assert_eq!(check("docs/a.md", &page(&block)), expected, "{block}");
        }
        assert_eq!(check("docs/deep/a.md", &page(&long)).len(), 1);
        assert_eq!(check("README.md", &page(&long)).len(), 1);
        assert_eq!(check("CONTRIBUTING.md", &page(&long)).len(), 1);
        assert_eq!(check("CHANGELOG.md", &page(&long)), [""; 0]);
    }

    #[test]
    fn a_page_begins_with_a_title_and_a_paragraph() {
        for text in ["# Title\n\nWhat.\n", "<!-- by a tool -->\n# Title\nWhat.\n"] {
            assert_eq!(check("docs/a.md", text), [""; 0], "{text}");
        }
        for text in
            ["", "What.\n", "# Title\n", "# Title\n\n## Part\n\nWhat.\n", "# Title\n\n- What.\n"]
        {
            assert_eq!(check("docs/a.md", text), ["docs/a.md:1"], "{text}");
        }
    }

    #[test]
    fn the_architecture_page_has_a_limit() {
        let page = |lines: usize| format!("# Title\n\nWhat.\n{}", "\n".repeat(lines - 3));
        assert_eq!(check("docs/ARCHITECTURE.md", &page(300)), [""; 0]);
        assert_eq!(check("docs/ARCHITECTURE.md", &page(301)), ["docs/ARCHITECTURE.md:301"]);
        assert_eq!(check("docs/a.md", &page(301)), [""; 0]);
    }
}
