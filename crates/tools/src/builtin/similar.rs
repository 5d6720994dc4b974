//! Finds tool names that are similar to an unknown name: a small edit distance, or the same last part in
//! another group.

/// One edit is allowed per so many letters of a name.
const LETTERS_PER_EDIT: usize = 3;

/// The names most similar to `wanted`, best first.
pub(super) fn names<'n>(
    wanted: &str,
    names: impl Iterator<Item = &'n str>,
    limit: usize,
) -> Vec<&'n str> {
    let wanted = wanted.to_lowercase();
    let mut found: Vec<(usize, &str)> =
        names.filter_map(|name| Some((distance(&wanted, &name.to_lowercase())?, name))).collect();
    found.sort_unstable();
    found.truncate(limit);
    found.into_iter().map(|(_, name)| name).collect()
}

/// The distance of two names; `None` if they are not similar.
fn distance(wanted: &str, name: &str) -> Option<usize> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let edits_max = wanted.len() / LETTERS_PER_EDIT;
    let edits = edits(wanted, name);
    // The same last part, with no group or another group.
    let same_word = (last(wanted) == last(name)).then_some(1);
    let part = (wanted.len() >= LETTERS_PER_EDIT && name.contains(wanted)).then_some(2);
    let close = (edits <= edits_max).then_some(edits);
    [same_word, part, close].into_iter().flatten().min()
}

/// Number of letters to insert, delete, substitute or swap to turn one name into the other.
fn edits(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, theirs) in other.iter().enumerate() {
            let changed = row[j] + usize::from(letter != theirs);
            let mut least = changed.min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && *letter == other[j - 1] && one[i - 1] == *theirs {
                least = least.min(before[j - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_found() {
        let names = ["files.read", "files.read_all", "files.write", "fetch", "search", "weather"];
        for (wanted, expected) in [
            ("files.raed", &["files.read"][..]),
            ("read", &["files.read", "files.read_all"]),
            ("disk.read", &["files.read"]),
            ("Search", &["search"]),
            ("serch", &["search"]),
            ("wether", &["weather"]),
            ("fetchh", &["fetch"]),
            ("x", &[]),
            ("", &[]),
        ] {
            assert_eq!(super::names(wanted, names.into_iter(), 3), expected, "{wanted}");
        }
    }

    #[test]
    fn edits_are_counted() {
        for (one, other, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("ab", "ba", 1),
            ("kitten", "sitting", 3),
            ("été", "ete", 2),
        ] {
            assert_eq!(edits(one, other), expected, "{one} {other}");
        }
    }
}
