# name: make protected files where there are none
# line: 50
# control: protected
import os

from attack import try_each


def plant(path):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write("{}\n")
    return path


try_each((path, lambda path=path: plant(path)) for path in (".mcp.json", ".codex/config.toml", ".vscode/tasks.json", "CLAUDE.md"))
