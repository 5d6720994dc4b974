//! Formats a change as a unified diff that `patch` can read.

use std::fmt::Write;
use std::path::Path;

use similar::algorithms::{Capture, Replace, myers};
use similar::udiff::UnifiedHunkHeader;
use similar::{DiffOp, DiffTag};

/// How many equal lines are shown around a change.
const CONTEXT_LINES: usize = 3;

/// The diff between two contents of a file; `None` means that the file does not exist.
pub fn unified(file: &Path, before: Option<&str>, after: Option<&str>) -> String {
    let name = |text: Option<&str>| match text {
        Some(_) => file.display().to_string(),
        None => "/dev/null".to_owned(),
    };
    let (old, new) = (lines(before), lines(after));
    // One algorithm over lines. `TextDiff` brings every algorithm for every kind of text, which is 0.7 MB of code.
    let mut changes = Replace::new(Capture::new());
    let Ok(()) = myers::diff(&mut changes, &old[..], 0..old.len(), &new[..], 0..new.len());
    let mut text = String::new();
    for hunk in changes.into_inner().into_grouped_ops(CONTEXT_LINES) {
        if text.is_empty() {
            let _ = writeln!(text, "--- {}\n+++ {}", name(before), name(after));
        }
        let _ = writeln!(text, "{}", UnifiedHunkHeader::new(&hunk));
        for change in &hunk {
            show(&mut text, change, &old, &new);
        }
    }
    text
}

fn lines(text: Option<&str>) -> Vec<&str> {
    text.unwrap_or_default().split_inclusive('\n').collect()
}

fn show(text: &mut String, change: &DiffOp, old: &[&str], new: &[&str]) {
    let (tag, in_old, in_new) = change.as_tag_tuple();
    let sides = match tag {
        DiffTag::Equal => vec![(' ', &old[in_old])],
        DiffTag::Delete => vec![('-', &old[in_old])],
        DiffTag::Insert => vec![('+', &new[in_new])],
        DiffTag::Replace => vec![('-', &old[in_old]), ('+', &new[in_new])],
    };
    for (sign, lines) in sides {
        for line in lines {
            text.push(sign);
            text.push_str(line);
            if !line.ends_with('\n') {
                text.push_str("\n\\ No newline at end of file\n");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_with_the_lines_around_it() {
        let file = Path::new("a.toml");
        let before = "1\n2\n3\n4\n5\n6\n7\n";
        let changed =
            "--- a.toml\n+++ a.toml\n@@ -2,6 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n+more\n 6\n 7\n";
        let ended =
            "--- a.toml\n+++ a.toml\n@@ -1 +1,2 @@\n-1\n\\ No newline at end of file\n+1\n+2\n";
        for (before, after, expected) in [
            (Some(before), Some(before), ""),
            (Some(before), Some("1\n2\n3\n4\nfive\nmore\n6\n7\n"), changed),
            (Some("1"), Some("1\n2\n"), ended),
            (None, Some("1\n"), "--- /dev/null\n+++ a.toml\n@@ -0,0 +1 @@\n+1\n"),
            (Some("1\n"), None, "--- a.toml\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"),
        ] {
            assert_eq!(unified(file, before, after), expected);
        }
    }
}
