# name: change what agents believe and run in this workspace
# line: 50
# levels: full
import os

from attack import append, try_each


def replaced(path):
    os.rename(path, path + ".old")
    return f"moved {path} away"


try_each([
    ("AGENTS.md", lambda: append("AGENTS.md")),
    (".claude", lambda: append(".claude/settings.json")),
    ("rename of AGENTS.md", lambda: replaced("AGENTS.md")),
    ("rename of .claude", lambda: replaced(".claude")),
])
