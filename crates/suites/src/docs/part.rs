//! How a block becomes shell commands, by its language.

use anyhow::{Result, bail};

use super::blocks::Block;

/// Runs a Python block, which may use `await` at its top level, in the module `__main__`.
const PYTHON: &str = r#"python3 -c '
import ast, asyncio, inspect, sys
block = compile(sys.stdin.read(), "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
block = eval(block, globals())
if inspect.iscoroutine(block): asyncio.run(block)'"#;

/// The shell commands that run a block; `None` if the block has nothing to run.
pub fn of_block(block: &Block) -> Result<Option<String>> {
    let text = &block.text;
    let here =
        |command: &str, text: &str| Some(format!("{command} <<'END-OF-BLOCK'\n{text}END-OF-BLOCK"));
    Ok(match block.language.as_str() {
        "sh" | "bash" => Some(block.commands()),
        "" | "console" if block.is_transcript() => Some(block.commands()),
        "python" => here(PYTHON, &format!("{}{text}", block.setup)),
        "toml" => {
            let write = here("cat >block.toml", text).unwrap_or_default();
            Some(format!("{write}\nwindlass config check block.toml >/dev/null"))
        }
        "json" => {
            serde_json::from_str::<serde_json::Value>(text)?;
            None
        }
        "text" | "mermaid" => None,
        "" => bail!("the block has no language; name it, or `text` if there is nothing to run"),
        other => bail!(
            "there is no way to run {other:?}; add `<!-- not run: REASON -->` before the block"
        ),
    })
}
