//! Searches tools by words and ranks the results.

use std::cmp::Reverse;
use std::sync::Arc;

use windlass_protocol::host::ToolOffer;

/// The score of a query word by where it matches. A match in the name scores most.
const IS_NAME: u32 = 12;
const BEGINS_NAME: u32 = 8;
const IN_NAME: u32 = 5;
const IN_DESCRIPTION: u32 = 3;
const BEGINS_IN_DESCRIPTION: u32 = 1;

/// Minimum length of a word that matches only a part of another word.
const PART_CHARS_MIN: usize = 3;

/// Maximum number of query words; further words are ignored.
const WORDS_MAX: usize = 32;

/// The best matching tools, ordered by the number of matching words, then by score, then by name. Tools
/// that match no word are left out.
pub(super) fn best<'o>(
    question: &str,
    offers: &'o [Arc<ToolOffer>],
    limit: usize,
) -> Vec<&'o ToolOffer> {
    let asked = words(question);
    let asked = &asked[..asked.len().min(WORDS_MAX)];
    let mut found: Vec<(usize, u32, &ToolOffer)> = offers
        .iter()
        .filter_map(|offer| {
            let (hits, score) = fit(asked, offer);
            (hits > 0).then_some((hits, score, &**offer))
        })
        .collect();
    found
        .sort_by_key(|(hits, score, offer)| (Reverse(*hits), Reverse(*score), offer.name.as_str()));
    found.truncate(limit);
    found.into_iter().map(|(_, _, offer)| offer).collect()
}

/// How many of the words match the tool, and the total score.
fn fit(asked: &[String], offer: &ToolOffer) -> (usize, u32) {
    let name = words(&offer.name);
    let description = words(&offer.description);
    asked.iter().fold((0, 0), |(hits, score), word| {
        let worth = in_name(word, &name) + in_description(word, &description);
        (hits + usize::from(worth > 0), score + worth)
    })
}

fn in_name(word: &str, name: &[String]) -> u32 {
    let worth = |part: &String| {
        if part == word {
            IS_NAME
        } else if shares_start(word, part) {
            BEGINS_NAME
        } else if word.len() >= PART_CHARS_MIN && part.contains(word) {
            IN_NAME
        } else {
            0
        }
    };
    name.iter().map(worth).max().unwrap_or(0)
}

fn in_description(word: &str, description: &[String]) -> u32 {
    let worth = |part: &String| {
        if part == word {
            IN_DESCRIPTION
        } else if shares_start(word, part) {
            BEGINS_IN_DESCRIPTION
        } else {
            0
        }
    };
    description.iter().map(worth).max().unwrap_or(0)
}

/// Whether one word starts with the other: `read` and `reading`, `issues` and `issue`.
fn shares_start(one: &str, other: &str) -> bool {
    one.len().min(other.len()) >= PART_CHARS_MIN
        && (one.starts_with(other) || other.starts_with(one))
}

/// The words of a text in lower case. A word ends at a character that is no letter or digit, and between a
/// small letter and a capital.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut after_small = false;
    for letter in text.chars() {
        let ends = !letter.is_alphanumeric() || (after_small && letter.is_uppercase());
        if ends && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if letter.is_alphanumeric() {
            word.extend(letter.to_lowercase());
        }
        after_small = letter.is_lowercase();
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(name: &str, description: &str) -> Arc<ToolOffer> {
        Arc::new(ToolOffer {
            name: name.to_owned(),
            description: description.to_owned(),
            input_schema: None,
            deadline_ms: None,
        })
    }

    #[test]
    fn the_best_match_comes_first() {
        let offers = [
            offer("files.list", "List the names in a directory."),
            offer("files.read", "Read a file's text."),
            offer("files.write", "Write text to a file, or read it back."),
            offer("github.createIssue", "Open a new issue in a repository."),
            offer("github.search_issues", "Find issues and pull requests."),
            offer("weather", "Forecast for a city: rain, sun, wind."),
        ];
        for (question, expected) in [
            ("read", &["files.read", "files.write"][..]),
            ("READ FILE", &["files.read", "files.write", "files.list"]),
            ("open an issue", &["github.createIssue", "github.search_issues"]),
            ("create_issue", &["github.createIssue", "github.search_issues"]),
            ("github.search", &["github.search_issues", "github.createIssue"]),
            ("will it rain in the city", &["weather", "files.list", "files.write"]),
            ("issue", &["github.createIssue", "github.search_issues"]),
            ("zebra", &[]),
            ("", &[]),
        ] {
            let found: Vec<&str> =
                best(question, &offers, 3).iter().map(|offer| offer.name.as_str()).collect();
            assert_eq!(found, expected, "{question}");
        }
    }

    #[test]
    fn a_text_is_split_into_words() {
        for (text, expected) in [
            ("files.read_all", &["files", "read", "all"][..]),
            ("createIssue2", &["create", "issue2"]),
            ("HTTP get", &["http", "get"]),
            ("Straße, ÉTÉ!", &["straße", "été"]),
            ("  ", &[]),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
    }
}
