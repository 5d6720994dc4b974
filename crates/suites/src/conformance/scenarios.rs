//! Every scenario of both suites, and whether it applies to a server whose tools run code. Each scenario that
//! does not apply has a reason. `docs/mcp-conformance.md` is written from this list.

/// Whether a scenario applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Applies,
    /// The scenario applies without these checks. Each has a reason.
    AppliesBut(&'static [(&'static str, &'static str)]),
    DoesNotApply(&'static str),
}

use Standing::{Applies, AppliesBut, DoesNotApply};

const NO_PROMPTS: &str = "the server has no prompts: the agent decides what to run";
const NO_COMPLETION: &str =
    "the server has nothing to complete: no prompts, and users do not type ids";
const NO_LOGGING: &str = "the server sends no log messages: what code prints is its output";
const NO_SAMPLING: &str = "the server never asks the client's model";
const NO_SUBSCRIPTIONS: &str =
    "the server has no resource subscriptions: clients wait for the end of a turn";
const NO_SKILLS: &str = "the server does not offer the skills extension; the suite skips it";
const NO_PROTOCOL_SESSIONS: &str = "the MCP door keeps no MCP sessions, in any revision";
const NO_REQUEST_WITHOUT_SESSION: &str = "over HTTP the server cannot send a request to a 2025 client without an MCP session; over stdio it does";
const OWN_FORM: &str = "checks a form of the test tool; the Windlass form has one text field";
const OWN_KEY: &str = "requires an input named user_name; Windlass uses its own name";
const NO_FIXED_TOOL: &str = "requires a tool with a fixed name in the list of tools";

/// All scenarios, in the order of the suites.
pub const SCENARIOS: &[(&str, Standing)] = &[
    ("server-initialize", Applies),
    ("server-session-lifecycle", DoesNotApply(NO_PROTOCOL_SESSIONS)),
    (
        "server-stateless",
        AppliesBut(&[
            ("sep-2575-server-rejects-undeclared-capability", NO_SAMPLING),
            ("sep-2575-missing-capability-http-400", NO_SAMPLING),
        ]),
    ),
    ("logging-set-level", DoesNotApply(NO_LOGGING)),
    ("ping", Applies),
    ("completion-complete", DoesNotApply(NO_COMPLETION)),
    ("tools-list", Applies),
    ("tools-call-simple-text", Applies),
    ("tools-call-image", Applies),
    ("tools-call-audio", DoesNotApply("replies link to sounds; only images are embedded")),
    ("tools-call-embedded-resource", DoesNotApply("replies link to resources and embed none")),
    ("tools-call-mixed-content", DoesNotApply("replies link to resources and embed none")),
    ("tools-call-with-logging", DoesNotApply(NO_LOGGING)),
    ("tools-call-error", Applies),
    ("tools-call-with-progress", Applies),
    ("tools-call-sampling", DoesNotApply(NO_SAMPLING)),
    ("tools-call-elicitation", DoesNotApply(NO_REQUEST_WITHOUT_SESSION)),
    ("json-schema-2020-12", DoesNotApply(NO_FIXED_TOOL)),
    ("elicitation-sep1034-defaults", DoesNotApply(OWN_FORM)),
    ("elicitation-sep1330-enums", DoesNotApply(OWN_FORM)),
    ("server-sse-polling", DoesNotApply(NO_PROTOCOL_SESSIONS)),
    (
        "server-sse-multiple-streams",
        AppliesBut(&[("server-sse-multiple-streams-session", NO_PROTOCOL_SESSIONS)]),
    ),
    ("resources-list", Applies),
    ("resources-read-text", Applies),
    ("resources-read-binary", Applies),
    ("resources-templates-read", Applies),
    ("resources-subscribe", DoesNotApply(NO_SUBSCRIPTIONS)),
    ("resources-unsubscribe", DoesNotApply(NO_SUBSCRIPTIONS)),
    ("sep-2164-resource-not-found", Applies),
    ("sep-2640-skills-directory", DoesNotApply(NO_SKILLS)),
    ("sep-2640-skills-enumeration", DoesNotApply(NO_SKILLS)),
    ("sep-2640-skills-manifest", DoesNotApply(NO_SKILLS)),
    ("prompts-list", DoesNotApply(NO_PROMPTS)),
    ("prompts-get-simple", DoesNotApply(NO_PROMPTS)),
    ("prompts-get-with-args", DoesNotApply(NO_PROMPTS)),
    ("prompts-get-embedded-resource", DoesNotApply(NO_PROMPTS)),
    ("prompts-get-with-image", DoesNotApply(NO_PROMPTS)),
    ("dns-rebinding-protection", Applies),
    ("caching", AppliesBut(&[("sep-2549-prompts-list-caching-hints", NO_PROMPTS)])),
    ("http-header-validation", Applies),
    (
        "http-custom-header-server-validation",
        DoesNotApply("no tool takes an argument from a header"),
    ),
    (
        "tasks-lifecycle",
        AppliesBut(&[(
            "sep-2663-tasks-get-status-failed",
            "every outcome of code is a result; no task ends with a protocol error",
        )]),
    ),
    ("tasks-capability-negotiation", Applies),
    ("tasks-wire-fields", Applies),
    ("tasks-request-state-removal", Applies),
    (
        "tasks-mrtr-input",
        AppliesBut(&[("tasks-mrtr-partial-fulfillment", "code asks for one line at a time")]),
    ),
    ("tasks-request-headers", Applies),
    ("tasks-dispatch-and-envelope", Applies),
    ("tasks-status-notifications", DoesNotApply("the suite has no checks for it yet and skips it")),
    ("tasks-required-task-error", DoesNotApply("no tool requires a client that supports tasks")),
    ("tasks-mrtr-composition", Applies),
    ("input-required-result-basic-elicitation", DoesNotApply(OWN_KEY)),
    ("input-required-result-basic-sampling", DoesNotApply(NO_SAMPLING)),
    (
        "input-required-result-basic-list-roots",
        DoesNotApply("the server never asks for the client's roots"),
    ),
    ("input-required-result-request-state", Applies),
    ("input-required-result-multiple-input-requests", DoesNotApply(NO_SAMPLING)),
    ("input-required-result-multi-round", Applies),
    ("input-required-result-missing-input-response", Applies),
    ("input-required-result-non-tool-request", DoesNotApply(NO_PROMPTS)),
    ("input-required-result-result-type", Applies),
    ("input-required-result-unsupported-methods", Applies),
    ("input-required-result-tampered-state", Applies),
    ("input-required-result-capability-check", DoesNotApply(NO_SAMPLING)),
    ("input-required-result-ignore-extra-params", DoesNotApply(OWN_KEY)),
    ("input-required-result-validate-input", Applies),
];

pub fn standing_of(scenario: &str) -> Option<Standing> {
    SCENARIOS.iter().find(|(name, _)| *name == scenario).map(|(_, standing)| *standing)
}

/// Whether the scenario applies, completely or in part.
pub fn applies(scenario: &str) -> bool {
    matches!(standing_of(scenario), Some(Applies | AppliesBut(_)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_scenario_is_in_the_list_once() {
        let names: BTreeSet<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), SCENARIOS.len());
    }

    #[test]
    fn a_reason_is_one_line_of_words() {
        for (name, standing) in SCENARIOS {
            let reasons: Vec<&str> = match standing {
                Applies => Vec::new(),
                AppliesBut(excepted) => excepted.iter().map(|(_, reason)| *reason).collect(),
                DoesNotApply(reason) => vec![reason],
            };
            for reason in reasons {
                assert!(reason.len() > 10 && !reason.contains(['\n', '|']), "{name}: {reason:?}");
            }
        }
    }
}
