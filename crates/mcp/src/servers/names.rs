//! Identifiers for code. Servers and their tools may have any name, but code can only call
//! identifiers. Pure.

use std::collections::HashSet;

use windlass_protocol::host::OWN_GROUP;

/// Longest identifiers of a server and of a tool in bytes. Joined with a dot they stay below the
/// limit of a tool's name. Longer ones are cut.
const GROUP_BYTES_MAX: usize = 48;
const TOOL_BYTES_MAX: usize = 72;

/// An identifier for each server, all different.
pub(crate) fn groups<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    distinct(names, GROUP_BYTES_MAX, &[OWN_GROUP])
}

/// An identifier for each tool of one server, all different.
pub(crate) fn tools<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    distinct(names, TOOL_BYTES_MAX, &[])
}

/// Distinct identifiers for the names. A name that is already an identifier keeps it.
fn distinct<'a>(
    names: impl Iterator<Item = &'a str>,
    bytes_max: usize,
    taken: &[&str],
) -> Vec<String> {
    let names: Vec<&str> = names.collect();
    let wanted: Vec<String> = names.iter().map(|name| identifier(name, bytes_max)).collect();
    let mut used: HashSet<String> = taken.iter().map(|name| (*name).to_owned()).collect();
    let mut given = vec![None; names.len()];
    for exact in [true, false] {
        for (place, name) in names.iter().enumerate() {
            if given[place].is_none() && (!exact || *name == wanted[place]) {
                // A repeated name keeps its identifier only the first time.
                let free = if exact && !used.contains(*name) {
                    Some(wanted[place].clone())
                } else if exact {
                    None
                } else {
                    (1..)
                        .map(|number| numbered(&wanted[place], number))
                        .find(|it| !used.contains(it))
                };
                used.extend(free.clone());
                given[place] = free;
            }
        }
    }
    given.into_iter().flatten().collect()
}

fn numbered(name: &str, number: usize) -> String {
    if number == 1 { name.to_owned() } else { format!("{name}_{number}") }
}

fn identifier(name: &str, bytes_max: usize) -> String {
    let part_of_one = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut text: String = name.chars().map(|c| if part_of_one(c) { c } else { '_' }).collect();
    if text.chars().next().is_none_or(|first| first.is_ascii_digit()) {
        text.insert(0, '_');
    }
    text.truncate(bytes_max);
    text
}

#[cfg(test)]
mod tests {
    use windlass_protocol::host::is_tool_name;

    use super::*;

    #[test]
    fn every_name_becomes_an_identifier_of_its_own() {
        let names = ["read-file", "read_file", "read.file", "7zip", "", "read_file", "é"];
        let made = tools(names.into_iter());
        let expected =
            ["read_file_2", "read_file", "read_file_3", "_7zip", "_", "read_file_4", "__2"];
        assert_eq!(made, expected);
        assert_eq!(groups(["windlass", "files"].into_iter()), ["windlass_2", "files"]);
    }

    #[test]
    fn the_longest_names_still_fit() {
        let long = "x".repeat(500);
        let group = groups([long.as_str()].into_iter()).remove(0);
        let tools = tools([long.as_str(), long.as_str()].into_iter());
        for tool in &tools {
            assert!(is_tool_name(&format!("{group}.{tool}")));
        }
        assert_ne!(tools[0], tools[1]);
    }
}
