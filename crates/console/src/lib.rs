//! The built files of the web console, embedded in the program: the page works offline and needs no other server. Knows
//! no HTTP: the node's door serves the files.

/// The page.
pub const INDEX: &str = "index.html";

/// Names and contents of the files in `dist`.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// Content type for each ending. A file with another ending is not served.
const CONTENT_TYPES: [(&str, &str); 9] = [
    ("css", "text/css; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/x-icon"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("png", "image/png"),
    ("svg", "image/svg+xml"),
    ("txt", "text/plain; charset=utf-8"),
    ("woff2", "font/woff2"),
];

/// Where the build puts the files whose names have a hash of their content.
const ASSETS: &str = "assets/";

/// Length of the hash in the name of an asset.
const HASH_LETTERS: usize = 8;

/// A file of the console.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsoleFile {
    pub bytes: &'static [u8],
    pub content_type: &'static str,
    pub caching: FileCaching,
}

/// How long a browser may keep a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileCaching {
    /// The name has a hash of the content, so the content of this name never changes.
    Immutable,
    /// A later release may have another content at this name.
    Revalidate,
}

/// The file at a path below the console's address, such as `index.html` or `assets/index-1a2b3c4d.js`.
pub fn file(path: &str) -> Option<ConsoleFile> {
    let &(_, bytes) = FILES.iter().find(|(name, _)| *name == path)?;
    let content_type = content_type(path)?;
    let caching = if is_hashed(path) { FileCaching::Immutable } else { FileCaching::Revalidate };
    Some(ConsoleFile { bytes, content_type, caching })
}

fn content_type(path: &str) -> Option<&'static str> {
    let (_, ending) = path.rsplit_once('.')?;
    CONTENT_TYPES.iter().find(|(known, _)| *known == ending).map(|(_, content_type)| *content_type)
}

/// Whether a name is like `assets/NAME-HASH.js`, as the build writes it.
fn is_hashed(path: &str) -> bool {
    let stem = path.strip_prefix(ASSETS).and_then(|name| name.rsplit_once('.'));
    let Some((stem, _)) = stem else { return false };
    // A hash can contain a hyphen, so its length counts.
    let Some(at) = stem.len().checked_sub(HASH_LETTERS + 1) else { return false };
    let (name, hash) = stem.as_bytes().split_at(at);
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || [b'-', b'_'].contains(byte);
    !name.is_empty() && hash[0] == b'-' && hash[1..].iter().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_all_it_names_are_embedded() {
        let page = file(INDEX).expect("the page is embedded");
        assert_eq!(page.content_type, "text/html; charset=utf-8");
        assert_eq!(page.caching, FileCaching::Revalidate);
        let text = str::from_utf8(page.bytes).expect("the page is UTF-8");
        let named = text.split('"').filter_map(|part| {
            let part = part.trim_start_matches("./").trim_start_matches("/console/");
            part.starts_with(ASSETS).then_some(part)
        });
        let mut count = 0;
        for path in named {
            assert!(file(path).is_some(), "{path}");
            count += 1;
        }
        assert!(count > 0, "{text}");
    }

    #[test]
    fn every_embedded_file_has_a_content_type() {
        for (name, _) in FILES {
            assert!(file(name).is_some(), "{name}");
        }
    }

    #[test]
    fn only_plain_names_of_embedded_files_are_found() {
        for path in
            ["", "/", "assets", "assets/", "../Cargo.toml", "assets/../index.html", "/index.html"]
        {
            assert_eq!(file(path), None, "{path:?}");
        }
    }

    #[test]
    fn a_name_with_a_hash_is_immutable() {
        for (path, expected) in [
            ("assets/index-1a2B3c4D.js", true),
            ("assets/inter-latin-a_-b3c4D.woff2", true),
            ("assets/index.js", false),
            ("assets/-1a2b3c4d.js", false),
            ("assets/console.css", false),
            ("assets/é-1.js", false),
            ("index-1a2b3c4d.html", false),
        ] {
            assert_eq!(is_hashed(path), expected, "{path}");
        }
    }

    #[test]
    fn the_page_has_no_inline_script_and_no_inline_style() {
        let page = file(INDEX).expect("the page is embedded");
        let text = str::from_utf8(page.bytes).expect("the page is UTF-8").to_lowercase();
        for forbidden in ["<style", " style=", " onload=", " onclick=", "javascript:"] {
            assert!(!text.contains(forbidden), "{forbidden}");
        }
        for (_, rest) in text.match_indices("<script").map(|(at, _)| text.split_at(at)) {
            let tag = rest.split('>').next().unwrap_or_default();
            assert!(tag.contains("src="), "{tag}");
        }
    }
}
