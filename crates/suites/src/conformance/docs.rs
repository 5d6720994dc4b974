//! `docs/mcp-conformance.md`, made from the list of scenarios and the table of stand-ins. A test
//! holds it to what is in git.

use std::fmt::Write;

use super::fixtures::{FIXTURES, RESOURCES};
use super::scenarios::{SCENARIOS, Standing};
use super::suite::Suite;

pub const PATH: &str = "docs/mcp-conformance.md";

const OPENING: &str = "\
<!-- Made by `cargo xtask conformance --write-docs`; change crates/suites/src/conformance instead. -->
# MCP conformance

`cargo xtask conformance` runs the server side of the official suite, npm
`@modelcontextprotocol/conformance`, against a real node, and is part of every check of this repository.
";

const JUDGING: &str = "\
A check that fails and a recommendation that is not followed both count as failures. So do a scenario that
is not in the lists below, and one that is listed as not applying and passes. For 2025-03-26 the suite has
next to nothing: what it has for 2025-06-18 is played there all the same.
";

const STAND_INS: &str = "\
## What stands in for the suite's own tools

Many scenarios call a tool by a fixed name, of a server written for the suite, and look at the shape of
what it answers. These calls are sent on as `run` with code that does the same, and its resources are read
as ones of ours; only the request is changed, the answers are what the node says. Where the suite fills in
a form, the value goes into the one field that ours has.
";

pub fn text() -> String {
    let mut text = OPENING.to_owned();
    for suite in Suite::ALL {
        let _ = write!(text, "\n- {} {}, at", suite.as_str(), suite.version());
        let rounds: Vec<&str> = suite.rounds().iter().map(|round| round.at_words()).collect();
        let _ = write!(text, " {}", rounds.join(", "));
    }
    let _ = write!(text, "\n\n{JUDGING}\n## What applies, and passes\n");
    let applies = |standing: &Standing| !matches!(standing, Standing::DoesNotApply(_));
    for (name, _) in SCENARIOS.iter().filter(|(_, standing)| applies(standing)) {
        let _ = write!(text, "\n- `{name}`");
    }
    text.push_str("\n\n## What does not apply\n\n| scenario | why |\n|---|---|\n");
    for (name, standing) in SCENARIOS {
        if let Standing::DoesNotApply(reason) = standing {
            let _ = writeln!(text, "| `{name}` | {reason} |");
        }
    }
    text.push_str(
        "\nOf scenarios that apply otherwise:\n\n| scenario | check | why |\n|---|---|---|\n",
    );
    for (name, standing) in SCENARIOS {
        if let Standing::AppliesBut(excepted) = standing {
            for (check, reason) in *excepted {
                let _ = writeln!(text, "| `{name}` | `{check}` | {reason} |");
            }
        }
    }
    let _ = write!(text, "\n{STAND_INS}\n| the suite's | ours |\n|---|---|\n");
    for fixture in FIXTURES {
        let _ = writeln!(text, "| tool `{}` | code that {} |", fixture.tool, fixture.words);
    }
    for (uri, words) in RESOURCES {
        let _ = writeln!(text, "| resource `{uri}` | {words} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    #[test]
    fn the_documentation_is_made_from_the_lists() {
        let there = std::fs::read_to_string(workspace::root().join(PATH)).unwrap();
        assert!(there == text(), "{PATH} is old: run `cargo xtask conformance --write-docs`");
    }
}
