//! Formats a change as a unified diff that `patch` can read.

use std::path::Path;

use similar::TextDiff;

/// The diff between two contents of a file; `None` means that the file does not exist.
pub fn unified(file: &Path, before: Option<&str>, after: Option<&str>) -> String {
    let name = |text: Option<&str>| match text {
        Some(_) => file.display().to_string(),
        None => "/dev/null".to_owned(),
    };
    TextDiff::from_lines(before.unwrap_or_default(), after.unwrap_or_default())
        .unified_diff()
        .header(&name(before), &name(after))
        .to_string()
}
