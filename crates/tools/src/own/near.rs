//! Names that were perhaps meant: of the same letters but for a few, or the same word elsewhere.

/// Of each so many letters of a name, one may be wrong.
const LETTERS_PER_SLIP: usize = 3;

/// The names nearest to `wanted`, nearest first.
pub(super) fn to<'n>(
    wanted: &str,
    names: impl Iterator<Item = &'n str>,
    most: usize,
) -> Vec<&'n str> {
    let wanted = wanted.to_lowercase();
    let mut near: Vec<(usize, &str)> =
        names.filter_map(|name| Some((apart(&wanted, &name.to_lowercase())?, name))).collect();
    near.sort_unstable();
    near.truncate(most);
    near.into_iter().map(|(_, name)| name).collect()
}

/// How far apart two names are; none, if nobody would take one for the other.
fn apart(wanted: &str, name: &str) -> Option<usize> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let slips_max = wanted.len() / LETTERS_PER_SLIP;
    let slips = slips(wanted, name);
    // The word alone, where the group was forgotten or is another.
    let same_word = (last(wanted) == last(name)).then_some(1);
    let part = (wanted.len() >= LETTERS_PER_SLIP && name.contains(wanted)).then_some(2);
    let close = (slips <= slips_max).then_some(slips);
    [same_word, part, close].into_iter().flatten().min()
}

/// Letters to add, drop, change or swap with the next to make one of the other.
fn slips(one: &str, other: &str) -> usize {
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
    fn what_was_meant_is_named_and_nothing_else() {
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
            assert_eq!(to(wanted, names.into_iter(), 3), expected, "{wanted}");
        }
    }

    #[test]
    fn slips_are_counted_as_a_hand_makes_them() {
        for (one, other, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("ab", "ba", 1),
            ("kitten", "sitting", 3),
            ("été", "ete", 2),
        ] {
            assert_eq!(slips(one, other), expected, "{one} {other}");
        }
    }
}
