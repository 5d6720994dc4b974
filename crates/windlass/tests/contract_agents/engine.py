"""A scripted agent that speaks ACP and misbehaves on request. The words of a prompt choose what it does:

say TEXT        a message in chunks, then the end
burst N         N chunks `0;`, `1;`, ...
wait FILE       runs until FILE exists or the turn is cancelled
spawn           leaves a process behind that has left its session and ignores signals
ask TITLE       asks for permission, and tells the answer
ask2 TITLE      asks twice at once, and withdraws nothing
then TITLE      asks, and asks again after the answer
only TITLE      asks with no option to refuse
again           answers requests a second time, in the turn
fifo            puts a pipe where the worker writes the log
odd             updates of unknown kinds, an update of an unseen action, lines that are no JSON
exit N          dies in the turn, after a message
quiet           closes its output in the turn without a word
last            writes its last line without a newline, then dies
hang            neither works nor obeys
forever         sends notes for ever, and makes no progress
fail TEXT       the prompt fails
run CODE        runs code by the session's MCP server, and tells the result. `\\n` in the code is a line end
mcp JSON        sends a request to the MCP server, and tells the response
cancel FILE CODE  runs code by the MCP server, and cancels the request when FILE exists
abandon N CODE  begins N requests that run code, and cancels each at once

Options: --id ID names every new session; --die N dies at once; --late S is ready after S seconds.
`turns.log` in the current directory has a line for the begin and the end of each turn and of each process.
"""

import json
import os
import subprocess
import sys
import threading
import time
import uuid

LOCK = threading.Lock()
STATE = {"cancelled": False, "answers": {}, "asked": 100}


def log(*words):
    line = " ".join(str(word) for word in (time.time(), *words)) + "\n"
    with open("turns.log", "a", encoding="utf-8") as file:
        file.write(line)


def send(message):
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def update(session, **fields):
    send({"method": "session/update", "params": {"sessionId": session, "update": fields}})


def chunk(session, text):
    update(session, sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})


def call(session, call_id, title, status):
    update(session, sessionUpdate="tool_call", toolCallId=call_id, title=title, kind="execute", status=status)


def request_permission(session, title, call_id, kinds=None):
    STATE["asked"] += 1
    number = STATE["asked"]
    options = [
        {"optionId": "ever", "kind": "allow_always", "name": "Always"},
        {"optionId": "once", "kind": "allow_once", "name": "Once"},
        {"optionId": "no", "kind": "reject_once", "name": "No"},
        {"optionId": "strange", "kind": "allow_sometimes", "name": "Strange"},
    ]
    options = [option for option in options if kinds is None or option["kind"] in kinds]
    tool = {"toolCallId": call_id, "title": title, "kind": "execute", "status": "pending"}
    send({
        "id": number,
        "method": "session/request_permission",
        "params": {"sessionId": session, "toolCall": tool, "options": options},
    })
    return number


def answer_of(number):
    while number not in STATE["answers"]:
        time.sleep(0.01)
    return STATE["answers"].pop(number)


def until(condition):
    while not condition() and not STATE["cancelled"]:
        time.sleep(0.01)


class McpServer:
    """The MCP server that the client of this agent names."""

    def __init__(self, server):
        variables = {entry["name"]: entry["value"] for entry in server["env"]}
        self.process = subprocess.Popen(
            [server["command"], *server["args"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
        )
        self.last = 0
        client = {"name": "scripted", "version": "1"}
        version = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        self.ask("initialize", version)
        self.tell({"method": "notifications/initialized"})

    def tell(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method, params):
        self.last += 1
        self.tell({"id": self.last, "method": method, "params": params})

    def ask(self, method, params):
        self.begin(method, params)
        for line in self.process.stdout:
            message = json.loads(line)
            if message["id"] in (self.last, None):
                return message
        return {"error": {"message": "the MCP server has ended"}}


def mcp_server():
    if "server" not in STATE:
        STATE["server"] = McpServer(STATE["servers"][0])
    return STATE["server"]


def run_call(code):
    return {"name": "run", "arguments": {"code": code.replace("\\n", "\n")}}


def act_by_server(session, word, rest):
    if word == "abandon":
        count, _, code = rest.partition(" ")
        server = mcp_server()
        for _ in range(int(count)):
            server.begin("tools/call", run_call(code))
            server.tell({"method": "notifications/cancelled", "params": {"requestId": server.last}})
        chunk(session, "abandoned")
    elif word == "run":
        call(session, "r1", "run", "in_progress")
        response = mcp_server().ask("tools/call", run_call(rest))
        content = response.get("result", {}).get("content", [])
        chunk(session, "".join(part.get("text", "") for part in content) or json.dumps(response))
    elif word == "mcp":
        request = json.loads(rest)
        chunk(session, json.dumps(mcp_server().ask(request["method"], request.get("params", {}))))
    elif word == "cancel":
        file, _, code = rest.partition(" ")
        server = mcp_server()
        server.begin("tools/call", run_call(code))
        until(lambda: os.path.exists(file))
        server.tell({"method": "notifications/cancelled", "params": {"requestId": server.last}})
        chunk(session, "cancelled")


def put_pipe_for_log():
    log_file = os.path.join(os.environ["HOME"], "engine.log")
    os.unlink(log_file)
    os.mkfifo(log_file)
    os._exit(0)


def act(session, word, rest):
    """Runs a prompt. Returns the stop reason, or None if nothing is to be said."""
    if word == "say":
        for piece in rest.split(" "):
            chunk(session, piece + " ")
    elif word == "burst":
        for number in range(int(rest)):
            chunk(session, f"{number};")
    elif word == "wait":
        call(session, "w1", "wait", "in_progress")
        until(lambda: os.path.exists(rest))
        chunk(session, "waited")
    elif word == "spawn":
        code = "import signal,time\nfor s in (1,2,15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(600)"
        subprocess.Popen(["setsid", "sh", "-c", f'python3 -c "$0" left-behind-{rest} & sleep 600', code])
        call(session, "s1", "spawn", "in_progress")
        chunk(session, "spawned")
        until(lambda: False)
    elif word in ("ask", "ask2"):
        numbers = [request_permission(session, rest, "a1")]
        if word == "ask2":
            numbers.append(request_permission(session, rest + " again", "a2"))
        for number in numbers:
            chunk(session, json.dumps(answer_of(number)) + "\n")
    elif word == "then":
        for title in (rest, rest + " again"):
            chunk(session, json.dumps(answer_of(request_permission(session, title, title))) + "\n")
    elif word == "only":
        chunk(session, json.dumps(answer_of(request_permission(session, rest, "o1", ["allow_once"]))))
    elif word == "again":
        for number in range(1, STATE["prompt"]):
            send({"id": number, "result": {"sessionId": "other", "stopReason": "end_turn"}})
        chunk(session, "after")
    elif word == "fifo":
        put_pipe_for_log()
    elif word == "odd":
        update(session, sessionUpdate="brand_new_thing", text="?")
        with LOCK:
            sys.stdout.write("no json at all\n[1, 2]\n\n")
            sys.stdout.flush()
        update(session, sessionUpdate="tool_call_update", toolCallId="u1", title="unseen", status="completed")
        send({"method": "brand/new", "params": {}})
        send({"id": 1, "method": "fs/read_text_file", "params": {"path": "x"}})
        chunk(session, "still here")
    elif word == "exit":
        chunk(session, "so far")
        print("a secret on standard error", file=sys.stderr)
        sys.stdout.flush()
        os._exit(int(rest))
    elif word == "quiet":
        chunk(session, "so far")
        os.close(1)
        time.sleep(600)
    elif word == "last":
        STATE["cancelled"] = None
        return "last"
    elif word == "hang":
        STATE["hangs"] = True
        call(session, "h1", "hang", "in_progress")
        time.sleep(600)
    elif word == "forever":
        while True:
            send({"method": "session/update", "params": {"sessionId": session, "update": {"sessionUpdate": "usage_update"}}})
            time.sleep(0.05)
    elif word in ("run", "mcp", "cancel", "abandon"):
        act_by_server(session, word, rest)
    elif word == "fail":
        return {"code": -32603, "message": "Internal error", "data": {"details": rest}}
    return "cancelled" if STATE["cancelled"] else "end_turn"


def prompt(number, session, text):
    log("begin", session, os.getpid())
    STATE["cancelled"] = False
    STATE["prompt"] = number
    word, _, rest = text.partition(" ")
    reason = act(session, word, rest)
    log("end", session, os.getpid())
    if isinstance(reason, dict):
        send({"id": number, "error": reason})
    elif reason == "last":
        line = {"jsonrpc": "2.0", "id": number, "result": {"stopReason": "end_turn"}}
        os.write(1, json.dumps(line).encode())
        os._exit(0)
    else:
        usage = {"inputTokens": 7, "outputTokens": 5}
        send({"id": number, "result": {"stopReason": reason, "usage": usage}})


def option(name, default):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def main():
    log("start", os.getpid())
    if "--die" in sys.argv:
        print("a secret on standard error", file=sys.stderr)
        sys.exit(int(option("--die", "1")))
    time.sleep(float(option("--late", "0")))
    for line in sys.stdin:
        message = json.loads(line)
        number, method, params = message.get("id"), message.get("method"), message.get("params", {})
        if STATE.get("hangs"):
            continue
        if method == "initialize":
            capabilities = {"loadSession": True, "sessionCapabilities": {"resume": {}}}
            send({"id": number, "result": {"protocolVersion": 1, "agentCapabilities": capabilities}})
        elif method == "session/new":
            STATE["servers"] = params["mcpServers"]
            send({"id": number, "result": {"sessionId": option("--id", str(uuid.uuid4()))}})
        elif method == "session/resume":
            STATE["servers"] = params["mcpServers"]
            send({"id": number, "result": {}})
        elif method == "session/prompt":
            text = params["prompt"][0]["text"]
            arguments = (number, params["sessionId"], text)
            threading.Thread(target=prompt, args=arguments, daemon=True).start()
        elif method == "session/cancel":
            STATE["cancelled"] = True
        elif method is None and "result" in message:
            STATE["answers"][number] = message["result"]


main()
