//! The precondition that a client can set on a change of a file, and the etag that identifies a
//! version of a file.

use rustix::fs::Stat;

use super::FileError;

/// The state that a file must have before a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Precondition {
    #[default]
    Any,
    /// The file exists.
    Present,
    /// The file exists and has one of these etags.
    OneOf(Vec<String>),
    /// The file does not exist.
    Absent,
}

impl Precondition {
    /// Parses the headers `If-Match` and `If-None-Match`, or the JSON fields of the same meaning.
    pub fn parse(if_match: Option<&str>, if_none_match: Option<&str>) -> Result<Self, FileError> {
        match (if_match.map(str::trim), if_none_match.map(str::trim)) {
            (None, None) => Ok(Self::Any),
            (None, Some("*")) => Ok(Self::Absent),
            (Some("*"), None) => Ok(Self::Present),
            (Some(etags), None) => Ok(Self::OneOf(
                // With quotes, as in HTTP, or without, as in JSON.
                etags.split(',').map(|etag| etag.trim().trim_matches('"').to_owned()).collect(),
            )),
            (None, Some(_)) => Err(FileError::BadRequest("If-None-Match can only be *".to_owned())),
            (Some(_), Some(_)) => {
                let message = "If-Match and If-None-Match contradict each other";
                Err(FileError::BadRequest(message.to_owned()))
            }
        }
    }

    /// Whether the precondition holds for this file; `None` means that the file does not exist.
    pub fn holds(&self, file: Option<&Stat>) -> bool {
        match (self, file) {
            (Self::Any, _) | (Self::Present, Some(_)) | (Self::Absent, None) => true,
            (Self::OneOf(etags), Some(stat)) => etags.contains(&etag(stat)),
            (Self::Present | Self::OneOf(_), None) | (Self::Absent, Some(_)) => false,
        }
    }
}

/// Identifies a version of a file. Another inode, length or change time gives another etag.
pub fn etag(stat: &Stat) -> String {
    let (modified, changed) = (nanoseconds(stat.st_mtime, stat.st_mtime_nsec), {
        nanoseconds(stat.st_ctime, stat.st_ctime_nsec)
    });
    format!("{:x}-{:x}-{modified:x}-{changed:x}", stat.st_ino, stat.st_size)
}

/// Whether both are the same version of a file. Unlike an etag, this ignores renames.
pub fn same_content(one: &Stat, other: &Stat) -> bool {
    let key =
        |stat: &Stat| (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
    key(one) == key(other)
}

fn nanoseconds(seconds: i64, nanoseconds: u64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_as_http_and_json_write_them() {
        let one = |etag: &str| Ok(Precondition::OneOf(vec![etag.to_owned()]));
        let parse = |if_match, if_none_match| {
            Precondition::parse(if_match, if_none_match).map_err(|error| error.to_string())
        };
        assert_eq!(parse(None, None), Ok(Precondition::Any));
        assert_eq!(parse(Some("\"a-1\""), None), one("a-1"));
        assert_eq!(parse(Some("a-1"), None), one("a-1"));
        let two = Precondition::OneOf(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(parse(Some("\"a\", \"b\""), None), Ok(two));
        assert_eq!(parse(Some("*"), None), Ok(Precondition::Present));
        assert_eq!(parse(None, Some(" *")), Ok(Precondition::Absent));
        assert!(parse(None, Some("\"a\"")).is_err());
        assert!(parse(Some("*"), Some("*")).is_err());
    }
}
