"""A guest of the chaos suite: counts in sessions through `windlass mcp`, like an agent, and prints one JSON
object per line. It ends when its standard input is closed."""

import json
import random
import subprocess
import sys
import threading
import time

CALLS_PER_BRIDGE = 60
REVISION = "2025-11-25"

# Pauses between two calls and after a failure, so that the other clients get CPU time.
PAUSE_S = 0.03
FAILURE_PAUSE_S = 0.2


def tell(**what):
    print(json.dumps(what), flush=True)


class Bridge:
    """A `windlass mcp` process and its JSON-RPC connection."""

    def __init__(self, program, name):
        self.process = subprocess.Popen([program, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.asked = 0
        self.ask("initialize", {
            "protocolVersion": REVISION,
            "clientInfo": {"name": name, "version": "1"},
            "capabilities": {},
        })
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def write(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method, params):
        self.asked += 1
        self.write({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params})
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("id") == self.asked and "method" not in message:
                return message
        raise EOFError("windlass mcp has ended")

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def count(bridge, calls, over):
    """Counts in the session. A failed call may have run, so the expected count is a range."""
    low, high = 0, None
    for _ in range(calls):
        if over.is_set():
            return
        time.sleep(PAUSE_S)
        code = "n = globals().get('n', 0) + 1\nprint(n)"
        answer = bridge.ask("tools/call", {"name": "run", "arguments": {"code": code}})
        result = answer.get("result") or {}
        said = result.get("structuredContent") or {}
        outcome = said.get("outcome")
        if outcome is None:
            high = None if high is None else high + 1
            tell(raised=said.get("code") or "mcp", text=json.dumps(answer)[:600])
            time.sleep(FAILURE_PAUSE_S)
            continue
        tell(turn=outcome, code=(said.get("error") or {}).get("code"), id=said.get("turn"))
        if outcome != "ok":
            low, high = 0, None
            continue
        counted = int(said["output"])
        # The session may exist before this process, so the first count may be any number.
        if counted <= low or (high is not None and counted > high + 1):
            tell(violation=f"{said.get('turn')}: counted {counted}, last count: {low} to {high}")
        low = high = counted


def main():
    over = threading.Event()

    def listen():
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    choices = random.Random(int(sys.argv[1]))
    while not over.is_set():
        bridge = Bridge(sys.argv[2], f"chaos-{choices.randrange(3)}")
        try:
            count(bridge, choices.randrange(1, CALLS_PER_BRIDGE), over)
        except (EOFError, BrokenPipeError) as error:
            tell(violation=f"windlass mcp has ended by itself: {error}")
        if choices.randrange(3) == 0:
            bridge.process.kill()
            bridge.process.wait()
        else:
            bridge.close()


main()
