//! Writes `docs/mcp-conformance.md` from the list of scenarios and the table of fixtures. A test compares the
//! file in git with them.

use std::fmt::Write;

use super::fixtures::{FIXTURES, RESOURCES};
use super::scenarios::{SCENARIOS, Standing};
use super::suite::Suite;

pub const PATH: &str = "docs/mcp-conformance.md";

const OPENING: &str = "\
<!-- Written by `cargo xtask conformance --write-docs`; change crates/suites/src/conformance instead. -->
# MCP conformance

This page lists which scenarios of the official MCP conformance suite Windlass passes, and which do not apply. It is
for developers of MCP clients. `cargo xtask conformance` runs the server scenarios of the npm package
`@modelcontextprotocol/conformance` against a real node. CI runs these versions for every change:
";

const FAILURES: &str = "\
The run fails if

- a check fails, or a recommendation is not followed;
- a scenario is missing in the lists below;
- a scenario is listed as not applicable, and passes.

The suite has almost no scenarios for 2025-03-26, so the scenarios for 2025-06-18 run at that revision too.
";

const REPLACEMENTS: &str = "\
## Replacements for the suite's test tools

Many scenarios call a tool of a test server by a fixed name and check the form of the answer. A forwarder turns such a
call into a `run` call with code that does the same. It also replaces the URIs of the suite's resources by URIs of
Windlass resources. Where the suite fills in a form, the forwarder puts the value into the only field of the Windlass
form. The forwarder changes only requests; answers reach the suite unchanged.
";

pub fn text() -> String {
    let mut text = OPENING.to_owned();
    for suite in Suite::ALL {
        let _ = write!(text, "\n- {} {}, at", suite.as_str(), suite.version());
        let rounds: Vec<&str> = suite.rounds().iter().map(|round| round.revision_name()).collect();
        let _ = write!(text, " {}", rounds.join(", "));
    }
    let _ = write!(text, "\n\n{FAILURES}\n## Scenarios that pass\n");
    let applies = |standing: &Standing| !matches!(standing, Standing::DoesNotApply(_));
    for (name, _) in SCENARIOS.iter().filter(|(_, standing)| applies(standing)) {
        let _ = write!(text, "\n- `{name}`");
    }
    text.push_str("\n\n## Scenarios that do not apply\n\n| scenario | reason |\n|---|---|\n");
    for (name, standing) in SCENARIOS {
        if let Standing::DoesNotApply(reason) = standing {
            let _ = writeln!(text, "| `{name}` | {reason} |");
        }
    }
    text.push_str(
        "\nThese checks of passing scenarios do not apply:\n\n| scenario | check | reason |\n|---|---|---|\n",
    );
    for (name, standing) in SCENARIOS {
        if let Standing::AppliesBut(excepted) = standing {
            for (check, reason) in *excepted {
                let _ = writeln!(text, "| `{name}` | `{check}` | {reason} |");
            }
        }
    }
    let _ = write!(text, "\n{REPLACEMENTS}\n| in the suite | in Windlass |\n|---|---|\n");
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
        assert!(
            there == text(),
            "{PATH} is out of date: run `cargo xtask conformance --write-docs`"
        );
    }
}
