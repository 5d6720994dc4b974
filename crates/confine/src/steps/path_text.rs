//! The JSON form of paths in a plan: a string if the path is UTF-8, otherwise its bytes as a list of numbers.
//! So a plan can bind or hide any path.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::ser::Serializer;

pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => serializer.serialize_str(text),
        None => serializer.collect_seq(path.as_os_str().as_bytes()),
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    deserializer.deserialize_any(TextOrBytes)
}

struct TextOrBytes;

impl<'de> Visitor<'de> for TextOrBytes {
    type Value = PathBuf;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path, as text or as a list of bytes")
    }

    fn visit_str<E>(self, text: &str) -> Result<PathBuf, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<PathBuf, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PathBuf, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = list.next_element()? {
            bytes.push(byte);
        }
        Ok(OsString::from_vec(bytes).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Mount, MountAccess, PathKind};

    #[test]
    fn any_path_survives_json_and_utf8_stays_a_string() {
        for name in [&b"/plain"[..], b"/caf\xc3\xa9", b"/caf\xe9", b"/\xff\xfe/\x80"] {
            let path = PathBuf::from(OsString::from_vec(name.to_vec()));
            let mount = Mount::Bind { path, kind: PathKind::File, access: MountAccess::Read };
            let text = serde_json::to_string(&mount).unwrap();
            assert_eq!(serde_json::from_str::<Mount>(&text).unwrap(), mount);
            assert_eq!(text.contains("\"path\":\"/"), name.is_ascii() || name[4] == 0xc3, "{text}");
        }
    }
}
