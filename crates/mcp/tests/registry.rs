//! `server.json`, the registry's description, agrees with this crate.

use serde_json::Value;

/// The longest description that the registry accepts.
const DESCRIPTION_CHARS_MAX: usize = 100;

#[test]
fn server_json_is_of_this_release() {
    let about: Value = serde_json::from_str(include_str!("../../../server.json")).unwrap();
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(about["repository"]["url"], env!("CARGO_PKG_REPOSITORY"));
    let name = about["name"].as_str().unwrap();
    assert_eq!(name, "io.github.windlass-dev/windlass");
    let description = about["description"].as_str().unwrap();
    assert!(description.len() <= DESCRIPTION_CHARS_MAX, "{}", description.len());
}
