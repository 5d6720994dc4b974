"""An MCP server for tests, over standard input and output. Uses only the standard library.

Each call runs in a thread. Arguments:
  --dumb          never answers
  --dies          prints a line and exits with code 7 before it answers
  --pages N       lists its tools N at a time
  --heeds-nothing keeps running after its input is closed and after SIGTERM
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

lock = threading.Lock()
cancelled = {}
more_tools = []


def send(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def text(value):
    return {"content": [{"type": "text", "text": str(value)}]}


def echo(arguments, event):
    return text(arguments["text"])


def add(arguments, event):
    total = arguments["a"] + arguments["b"]
    return {"content": [], "structuredContent": {"sum": total}}


def gate(arguments, event):
    with socket.socket(socket.AF_UNIX) as way:
        way.connect(arguments["path"])
        way.recv(1)
    return text(os.getpid())


def wait(arguments, event):
    event.wait()
    with open(arguments["told"], "w") as told:
        told.write("cancelled")
    return text("nobody reads this")


def fail(arguments, event):
    return {**text("the shelf is empty"), "isError": True}


def picture(arguments, event):
    image = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    return {"content": [{"type": "text", "text": "a dot"}, image]}


def facts(arguments, event):
    names = {link: os.readlink(f"/proc/self/fd/{link}") for link in own_descriptors()}
    found = {"pid": os.getpid(), "cwd": os.getcwd(), "env": dict(os.environ), "fds": names}
    return {"content": [], "structuredContent": found}


def own_descriptors():
    found = os.listdir("/proc/self/fd")
    return [link for link in found if os.path.exists(f"/proc/self/fd/{link}") or int(link) < 3]


def die(arguments, event):
    sys.stderr.write("a last word\n")
    sys.stderr.flush()
    os._exit(3)


def child(arguments, event):
    started = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return text(started.pid)


def grow(arguments, event):
    more_tools.append({"name": "grown", "inputSchema": {"type": "object"}})
    send({"method": "notifications/tools/list_changed"})
    return text("grown")


def flood(arguments, event):
    for number in range(arguments["lines"]):
        sys.stderr.write(f"line {number} of a flood\n")
    sys.stderr.flush()
    return text("said")


TOOLS = {
    "echo": (echo, "Say the text again", {"text": "string"}),
    "add": (add, "Add two numbers", {"a": "integer", "b": "integer"}),
    "pass-gate": (gate, "Wait at a gate of the test", {"path": "string"}),
    "wait": (wait, "Wait until it is cancelled", {"told": "string"}),
    "fail": (fail, "Fail", {}),
    "picture": (picture, "Draw a dot", {}),
    "facts": (facts, "Tell about the process", {}),
    "die": (die, "End the server", {}),
    "child": (child, "Start a process in a session of its own", {}),
    "grow": (grow, "Have one more tool", {}),
    "flood": (flood, "Say many lines on standard error", {"lines": "integer"}),
}


def listed():
    tools = []
    for name, (_, about, fields) in TOOLS.items():
        properties = {field: {"type": kind} for field, kind in fields.items()}
        schema = {"type": "object", "properties": properties, "required": list(fields)}
        tools.append({"name": name, "description": about, "inputSchema": schema})
    return tools + more_tools


def page(params, size):
    tools = listed()
    start = int(params.get("cursor") or 0)
    answer = {"tools": tools[start : start + size]}
    if start + size < len(tools):
        answer["nextCursor"] = str(start + size)
    return answer


def call(request):
    number, params = request["id"], request["params"]
    event = cancelled.setdefault(number, threading.Event())
    try:
        tool = TOOLS.get(params["name"], (lambda *_: text("grown"),))[0]
        send({"id": number, "result": tool(params.get("arguments") or {}, event)})
    except Exception as error:
        send({"id": number, "error": {"code": -32603, "message": repr(error)}})


def main(arguments):
    size = int(arguments[arguments.index("--pages") + 1]) if "--pages" in arguments else 1000
    if "--dies" in arguments:
        sys.exit(print("the cellar is flooded", file=sys.stderr) or 7)
    if "--heeds-nothing" in arguments:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        method = request.get("method")
        if "--dumb" in arguments:
            continue
        if method == "initialize":
            about = {"name": "fixture", "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            version = request["params"]["protocolVersion"]
            answer = {"protocolVersion": version, "serverInfo": about, "capabilities": capabilities}
            send({"id": request["id"], "result": answer})
        elif method == "tools/list":
            send({"id": request["id"], "result": page(request.get("params") or {}, size)})
        elif method == "tools/call":
            threading.Thread(target=call, args=[request], daemon=True).start()
        elif method == "notifications/cancelled":
            event = cancelled.setdefault(request["params"]["requestId"], threading.Event())
            event.set()
        elif "id" in request:
            error = {"code": -32601, "message": f"no method {method}"}
            send({"id": request["id"], "error": error})
    while "--heeds-nothing" in arguments:
        time.sleep(1000)


main(sys.argv[1:])
