//! Reads the lines of the contract, each with its number and sentence, and the line numbers in test names.

use anyhow::{Result, bail};

use super::report::ContractTest;

/// One promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContractLine {
    pub number: u8,
    pub sentence: String,
}

/// Reads the lines that start with `- NN `, in order. Two lines with the same number are an error.
pub fn parse(text: &str) -> Result<Vec<ContractLine>> {
    let mut lines: Vec<ContractLine> = Vec::new();
    for line in text.lines() {
        let Some((number, sentence)) =
            line.strip_prefix("- ").and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let Some(number) = line_number(number) else { continue };
        if lines.iter().any(|line| line.number == number) {
            bail!("docs/contract.md has two lines {number:02}");
        }
        lines.push(ContractLine { number, sentence: sentence.trim().to_owned() });
    }
    if lines.is_empty() {
        bail!("docs/contract.md has no line that starts with `- NN `");
    }
    Ok(lines)
}

/// The line that a test checks: the `NN` in `contract_NN_short_sentence`, in any module.
pub fn number_of(test: &str) -> Option<u8> {
    let name = test.rsplit("::").next().unwrap_or(test);
    let (number, _) = name.strip_prefix("contract_")?.split_once('_')?;
    line_number(number)
}

/// Tests whose name has no number of a line.
pub fn unknown(cases: &[ContractTest], lines: &[ContractLine]) -> Vec<String> {
    let known = |name: &str| {
        number_of(name).is_some_and(|number| lines.iter().any(|line| line.number == number))
    };
    let unknown = cases.iter().filter(|case| !known(&case.name));
    unknown.map(|case| case.name.clone()).collect()
}

/// A number with two digits, or with three from 100 on.
fn line_number(text: &str) -> Option<u8> {
    let has_length = text.len() == 2 || (text.len() == 3 && !text.starts_with('0'));
    let digits = has_length && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_in_the_repository_is_read_whole() {
        let lines = parse(include_str!("../../../docs/contract.md")).unwrap();
        assert_eq!(lines.first().unwrap().number, 1);
        assert_eq!(lines.last().unwrap().number, 112);
        assert!(lines.iter().all(|line| line.sentence.ends_with('.')));
    }

    #[test]
    fn a_number_stands_for_one_promise() {
        assert!(parse("- 01 A.\n- 01 B.\n").is_err());
        assert!(parse("nothing\n").is_err());
    }

    #[test]
    fn a_test_names_its_line() {
        for (name, number) in [
            ("contract_07_a_message", Some(7)),
            ("sessions::contract_07_a_message", Some(7)),
            ("contract_100_a_message", Some(100)),
            ("contract_7_a_message", None),
            ("contract_007_a_message", None),
            ("contract_1000_a_message", None),
            ("contract_07", None),
            ("a_contract_07_x", None),
        ] {
            assert_eq!(number_of(name), number, "{name}");
        }
    }
}
