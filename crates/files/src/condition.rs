//! What a client may require of a file before it is changed, and the etag by which it says so.

use rustix::fs::Stat;

use super::FileError;

/// What a file must be like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Condition {
    #[default]
    Any,
    /// There is one.
    Present,
    /// There is one, with one of these etags.
    OneOf(Vec<String>),
    /// There is none.
    Absent,
}

impl Condition {
    /// Of `If-Match` and `If-None-Match`, or the fields of that name.
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

    /// Whether it holds for a file that is there, or is not.
    pub fn holds(&self, file: Option<&Stat>) -> bool {
        match (self, file) {
            (Self::Any, _) | (Self::Present, Some(_)) | (Self::Absent, None) => true,
            (Self::OneOf(etags), Some(stat)) => etags.contains(&etag(stat)),
            (Self::Present | Self::OneOf(_), None) | (Self::Absent, Some(_)) => false,
        }
    }
}

/// A file's version: another file, another length or another moment of change is another etag.
pub fn etag(stat: &Stat) -> String {
    let (modified, changed) = (nanoseconds(stat.st_mtime, stat.st_mtime_nsec), {
        nanoseconds(stat.st_ctime, stat.st_ctime_nsec)
    });
    format!("{:x}-{:x}-{modified:x}-{changed:x}", stat.st_ino, stat.st_size)
}

/// Whether both are the same version of a file; renames do not count, as they do for an etag.
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
        let one = |etag: &str| Ok(Condition::OneOf(vec![etag.to_owned()]));
        let parse = |if_match, if_none_match| {
            Condition::parse(if_match, if_none_match).map_err(|error| error.to_string())
        };
        assert_eq!(parse(None, None), Ok(Condition::Any));
        assert_eq!(parse(Some("\"a-1\""), None), one("a-1"));
        assert_eq!(parse(Some("a-1"), None), one("a-1"));
        let two = Condition::OneOf(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(parse(Some("\"a\", \"b\""), None), Ok(two));
        assert_eq!(parse(Some("*"), None), Ok(Condition::Present));
        assert_eq!(parse(None, Some(" *")), Ok(Condition::Absent));
        assert!(parse(None, Some("\"a\"")).is_err());
        assert!(parse(Some("*"), Some("*")).is_err());
    }
}
