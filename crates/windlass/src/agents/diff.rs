//! A change as a unified diff, as `patch` reads it.

use std::path::Path;

use similar::TextDiff;

/// What a file would lose and gain; `None` for a file that is not there.
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
