//! Checks the user ids that a node gives to its sessions (`session_uids`): who else has ids of the range, and whether the
//! directories of sessions can be id-mapped. Changes nothing.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use windlass_confine::SurveyInput;
use windlass_confine::enter::{OwnerMapError, StepErrorAt, try_owner_map};
use windlass_node::UidRange;

use super::report::{CheckItem, CheckState};
use crate::counted::counted;
use crate::{config_file, settings};

/// The setting, which is also the name of its line.
const SETTING: &str = "session_uids";

/// Files with the users and groups of the machine. The third field of a line is the id.
const ACCOUNT_FILES: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// Files with the ids that users give to their containers. A line is `NAME:FIRST:COUNT`.
const DELEGATION_FILES: [&str; 2] = ["/etc/subuid", "/etc/subgid"];

/// Maximum number of names in a line; further ones are counted.
const NAMED_MAX: usize = 3;

const OTHER_RANGE: &str =
    "set `session_uids` to a range that nobody else has, once all sessions have ended";

/// The findings for a node that this user starts here. Empty for an ordinary user without the setting. The calling
/// process must be single-threaded.
pub fn items(site: &SurveyInput) -> Vec<CheckItem> {
    let is_root = rustix::process::geteuid().is_root();
    let range = match configured() {
        Ok(Some(range)) => range,
        Ok(None) if is_root => return vec![shared()],
        Ok(None) => return Vec::new(),
        Err(why) => {
            let help = "correct the value, for example `session_uids = \"200000-265535\"`";
            return vec![CheckItem::bad(SETTING, why, help)];
        }
    };
    if !is_root {
        let says = format!("{range}; only a node that root runs can give its sessions user ids");
        return vec![CheckItem::bad(SETTING, says, "run the node as root, or remove the setting")];
    }
    let ids = range.ids();
    let users = find(&ACCOUNT_FILES, |text| accounts(&ids, text));
    let containers = find(&DELEGATION_FILES, |text| delegations(&ids, text));
    let count = counted(range.count(), "user id for one session", "user ids, one for each session");
    let mut items = vec![
        CheckItem::good(SETTING, format!("{range}: {count}")),
        unshared("accounts", "users and groups", &ACCOUNT_FILES, &users),
        unshared("containers", "ranges for containers", &DELEGATION_FILES, &containers),
    ];
    let state = site.hidden.first().map(|path| mapped("map: state", path, *ids.start()));
    items.extend(state);
    let workspace = mapped("map: workspace", &site.workspace, *ids.start());
    items.push(match workspace.state {
        // Sessions without a workspace of the user still start.
        CheckState::Bad => CheckItem { state: CheckState::Lacking, ..workspace },
        CheckState::Good | CheckState::Lacking => workspace,
    });
    items
}

/// The range that a node would use; if it would not start, why.
fn configured() -> Result<Option<UidRange>, String> {
    let file = config_file::read();
    let values = settings::resolve(
        |_| None,
        |name| std::env::var_os(name),
        |key| file.node.get(key).cloned(),
    );
    let set = values.into_iter().find(|one| one.setting.key == SETTING);
    match (set.map(|one| one.value).filter(|value| !value.is_empty()), file.lost_uids) {
        (Some(text), _) => {
            UidRange::parse(&text).map(Some).map_err(|error| format!("{text:?}: {error}"))
        }
        (None, Some(why)) => Err(why),
        (None, None) => Ok(None),
    }
}

/// A node of root without the setting.
fn shared() -> CheckItem {
    CheckItem::lacking(
        SETTING,
        "not set: outside of the sandbox all sessions of a node have root's id",
    )
    .with_help(
        "set `session_uids` in `[node]` of config.toml, if sessions belong to several people",
    )
}

/// What `entries` finds in these files. A file that cannot be read has none.
fn find(files: &[&str], entries: impl Fn(&str) -> Vec<String>) -> Vec<String> {
    let text = |file: &&str| std::fs::read(file).unwrap_or_default();
    let texts = files.iter().map(text);
    let mut found: Vec<String> =
        texts.flat_map(|text| entries(&String::from_utf8_lossy(&text))).collect();
    found.sort();
    found.dedup();
    found
}

/// The users or groups of a file whose id is in the range.
fn accounts(ids: &RangeInclusive<u32>, text: &str) -> Vec<String> {
    let account = |line: &str| {
        let mut fields = line.split(':');
        let (name, id) = (fields.next()?, fields.nth(1)?.parse::<u32>().ok()?);
        ids.contains(&id).then(|| format!("{name} ({id})"))
    };
    text.lines().filter_map(account).collect()
}

/// The lines of a file for containers whose ids overlap the range.
fn delegations(ids: &RangeInclusive<u32>, text: &str) -> Vec<String> {
    let delegation = |line: &str| {
        let mut fields = line.trim().split(':');
        let name = fields.next()?;
        let (first, count): (u64, u64) =
            (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let last = first.checked_add(count.checked_sub(1)?)?;
        let overlaps = first <= u64::from(*ids.end()) && last >= u64::from(*ids.start());
        overlaps.then(|| format!("{name} ({first}-{last})"))
    };
    text.lines().filter_map(delegation).collect()
}

/// Whether nobody else has ids of the range.
fn unshared(name: &str, what: &str, files: &[&str], found: &[String]) -> CheckItem {
    let files = files.join(" and ");
    if found.is_empty() {
        return CheckItem::good(name, format!("no {what} of {files} have ids of the range"));
    }
    let mut named = found.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    if found.len() > NAMED_MAX {
        named.push_str(&format!(" and {} more", found.len() - NAMED_MAX));
    }
    let says = format!(
        "{what} of {files} have ids of the range: {named}; a session can get one of these ids"
    );
    CheckItem::lacking(name, says).with_help(OTHER_RANGE)
}

/// Whether the owner of a directory can be mapped to the user id of a session that writes there.
fn mapped(name: &str, path: &Path, uid: u32) -> CheckItem {
    // The node makes its state directory when it starts.
    let existing = path.ancestors().find_map(|at| std::fs::canonicalize(at).ok());
    let existing = existing.unwrap_or_else(|| PathBuf::from("/"));
    match try_owner_map(&existing, uid) {
        Ok(()) => {
            CheckItem::good(name, format!("{} can be id-mapped for sessions", existing.display()))
        }
        Err(error) => CheckItem::bad(name, error.to_string(), remedy(&error)),
    }
}

fn remedy(error: &OwnerMapError) -> &'static str {
    let refused = match error {
        OwnerMapError::Refused(StepErrorAt { failed, .. }) => {
            Errno::from_raw_os_error(failed.errno)
        }
        OwnerMapError::Prepare(_) => {
            return "allow user namespaces: `sudo sysctl -w user.max_user_namespaces=10000`; or remove `session_uids`";
        }
    };
    match refused {
        Errno::PERM => "give the node CAP_SYS_ADMIN of the machine, or remove `session_uids`",
        Errno::NOSYS => "boot a kernel of 5.12 or newer, or remove `session_uids`",
        _ => "use a directory on ext4, xfs, btrfs or tmpfs, or remove `session_uids`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: RangeInclusive<u32> = 200_000..=265_535;

    #[test]
    fn users_and_groups_with_an_id_of_the_range_are_named() {
        for (line, expected) in [
            ("ada:x:200000:100:Ada:/vol/ada:/bin/sh", &["ada (200000)"][..]),
            ("bob:x:265535:100::/vol/bob:/bin/sh", &["bob (265535)"]),
            ("staff:x:265000:ada,bob", &["staff (265000)"]),
            ("eve:x:199999:200001::/vol/eve:/bin/sh", &[]),
            ("last:x:265536:", &[]),
            ("", &[]),
            ("+::::::", &[]),
        ] {
            assert_eq!(accounts(&IDS, line), expected, "{line}");
        }
    }

    #[test]
    fn ranges_for_containers_that_overlap_are_named() {
        for (line, expected) in [
            ("ada:100000:65536", &[][..]),
            ("ada:165536:34464", &[]),
            ("ada:165536:34465", &["ada (165536-200000)"]),
            ("ada:265535:1", &["ada (265535-265535)"]),
            ("ada:265536:65536", &[]),
            ("ada:210000:0", &[]),
            ("ada:1:18446744073709551615", &["ada (1-18446744073709551615)"]),
            ("ada:2:18446744073709551615", &[]),
            ("ada", &[]),
        ] {
            assert_eq!(delegations(&IDS, line), expected, "{line}");
        }
    }

    #[test]
    fn a_range_that_others_have_too_is_a_warning_with_a_remedy() {
        let found = ["a (1)", "b (2)", "c (3)", "d (4)"].map(str::to_owned);
        let item = unshared("accounts", "users and groups", &ACCOUNT_FILES, &found);
        assert_eq!(item.state, CheckState::Lacking);
        assert!(item.says.contains("a (1), b (2), c (3) and 1 more; "), "{}", item.says);
        assert!(item.help.is_some());
        assert_eq!(unshared("accounts", "users", &ACCOUNT_FILES, &[]).state, CheckState::Good);
    }
}
