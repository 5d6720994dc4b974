//! The worker kinds for agents. A session names the engine, as in `agent:codex`, or the command of an agent that
//! speaks the Agent Client Protocol, as in `acp:my-agent`.

use super::{TypedInput, WorkerKind, shell};
use crate::event::StartedBy;

/// The engines that have an adapter of their own.
pub const ENGINES: [&str; 4] = ["codex", "claude", "opencode", "gemini"];

const CAPABILITIES: &[&str] = &["stdin", "interrupt", "display"];

pub const KIND: WorkerKind = WorkerKind {
    name: "agent",
    language: "prompts for codex, claude, opencode or gemini",
    extensions: &[],
    shebangs: &[],
    interpreter: "",
    version_arguments: &[],
    capabilities: CAPABILITIES,
    has_variants: true,
    starts: &[StartedBy::Exec],
    typed: TypedInput::Lines,
    terms: shell::JSON_TERMS,
};

pub const ACP_KIND: WorkerKind =
    WorkerKind { name: "acp", language: "prompts for any agent that speaks ACP", ..KIND };

/// The npm package of an engine.
pub fn package(engine: &str) -> Option<&'static str> {
    match engine {
        "codex" => Some("@openai/codex"),
        "claude" => Some("@anthropic-ai/claude-code"),
        "opencode" => Some("opencode-ai"),
        "gemini" => Some("@google/gemini-cli"),
        _ => None,
    }
}

/// Maximum characters of a program's name in the name of an ACP engine.
const PROGRAM_CHARS_MAX: usize = 32;

/// The name of a kind's engine in events and tokens: `codex` of `agent:codex`, `acp:my-agent` of
/// `acp:/opt/my-agent --stdio`.
pub fn engine_of(kind: &str) -> String {
    let (base, variant) = kind.split_once(super::VARIANT_SEPARATOR).unwrap_or((kind, ""));
    if base != ACP_KIND.name {
        return variant.to_owned();
    }
    let program = variant.split_whitespace().next().unwrap_or_default();
    let file = program.rsplit('/').next().unwrap_or_default();
    let plain = |char: &char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    let file: String = file.chars().filter(plain).take(PROGRAM_CHARS_MAX).collect();
    format!("{base}:{file}")
}

/// Whether sessions of this kind are agents.
pub fn is_agent(kind: &str) -> bool {
    let base = kind.split_once(super::VARIANT_SEPARATOR).map_or(kind, |(base, _)| base);
    base == KIND.name || base == ACP_KIND.name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_has_the_name_of_its_variant_or_program() {
        for (kind, engine) in [
            ("agent:codex", "codex"),
            ("acp:python3 engine.py --id x", "acp:python3"),
            ("acp:/opt/my agent", "acp:my"),
            ("acp:/opt/ödd+agent", "acp:ddagent"),
        ] {
            assert_eq!(engine_of(kind), engine);
        }
    }
}
