"""A Jupyter kernel that misbehaves on request. The code of a turn names the fault."""

import hashlib
import hmac
import json
import os
import signal
import sys
import time
import uuid

import zmq

signal.signal(signal.SIGINT, signal.SIG_IGN)
with open(sys.argv[1]) as file:
    info = json.load(file)
key = info["key"].encode()
context = zmq.Context()


def bound(kind, channel):
    made = context.socket(kind)
    made.sndhwm = 0
    divider = "-" if info["transport"] == "ipc" else ":"
    made.bind("%s://%s%s%d" % (info["transport"], info["ip"], divider, info[channel + "_port"]))
    return made


shell, control = bound(zmq.ROUTER, "shell"), bound(zmq.ROUTER, "control")
stdin, iopub = bound(zmq.ROUTER, "stdin"), bound(zmq.PUB, "iopub")


def packed(kind, content, parent, signing_key=key):
    header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "session": "s", "username": "u", "version": "5.3"}
    parts = [json.dumps(part).encode() for part in (header, parent, {}, content)]
    signature = hmac.new(signing_key, b"".join(parts), hashlib.sha256).hexdigest().encode()
    return [b"<IDS|MSG>", signature, *parts]


def publish(kind, content, parent, signing_key=key):
    iopub.send_multipart([b"topic", *packed(kind, content, parent, signing_key)])


def status(state, parent):
    publish("status", {"execution_state": state}, parent)


def say(text, parent, **options):
    publish("stream", {"name": "stdout", "text": text}, parent, **options)


previous = {}


def begin_slowly(parent):
    """Ignores interrupts until it says that it runs the code, and then waits for one."""
    say("on\n", parent)
    time.sleep(0.5)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        publish("execute_input", {"code": ""}, parent)
        time.sleep(60)
    except KeyboardInterrupt:
        pass
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def execute(code, parent):
    """Returns whether the kernel replies and whether it becomes idle."""
    global previous
    earlier, previous = previous, parent
    if code == "slow-begin":
        begin_slowly(parent)
        return False, True
    publish("execute_input", {"code": code}, parent)
    fault, _, argument = code.partition(" ")
    if fault == "die":
        say("last words\n", parent)
        time.sleep(0.5)  # lets the sending thread send
        os._exit(int(argument))
    if fault == "deaf":
        while True:
            time.sleep(1000)
    if fault == "forged":
        say("forged\n", parent, signing_key=b"another key")
        status_forged = {"execution_state": "idle"}
        publish("status", status_forged, parent, signing_key=b"another key")
    if fault == "garbage":
        for parts in ([b""], [b"<IDS|MSG>"], [b"<IDS|MSG>", b"zz", b"{", b"", b"\xff", b"["], [b"\0" * 70000]):
            iopub.send_multipart(parts)
        publish("stream", ["not", "an", "object"], parent)
        publish("display_data", {"data": 7}, parent)
        publish("error", {}, {"msg_id": 5})
        iopub.send_multipart([b"t", *packed("status", None, None)])
    if fault == "late":
        say("late\n", earlier)
        publish("error", {"ename": "Late", "evalue": "", "traceback": []}, earlier)
        status("idle", earlier)
        status("idle", {"msg_id": "somebody else's"})
        status("idle", {})
        reply(parent=earlier, kind="execute_reply", content={"status": "error"}, identity=last_identity)
    if fault == "flood":
        for number in range(int(argument)):
            say("%07d %s\n" % (number, "x" * 1000), parent)
    if fault not in ("silent", "late-result"):
        publish("execute_result", {"data": {"text/plain": code}, "execution_count": 1}, parent)
    return fault != "no-reply", fault != "no-idle"


def reply(kind, content, parent, identity):
    shell.send_multipart([identity, *packed(kind, content, parent)])


poller = zmq.Poller()
poller.register(shell, zmq.POLLIN)
poller.register(control, zmq.POLLIN)
last_identity = b""
while True:
    for socket, _ in poller.poll():
        parts = socket.recv_multipart()
        at = parts.index(b"<IDS|MSG>")
        identity, parent, content = parts[0], json.loads(parts[at + 2]), json.loads(parts[at + 5])
        kind = parent["msg_type"]
        if socket is control:
            if kind == "shutdown_request":
                sys.exit()
            continue
        last_identity = identity
        status("busy", parent)
        replies, idles, code = True, True, ""
        answer = {"status": "ok", "implementation": "fake", "implementation_version": "1"}
        if kind == "execute_request":
            code = content["code"]
            replies, idles = execute(code, parent)
            answer = {"status": "ok", "execution_count": 1}
        if replies:
            reply(kind.replace("request", "reply"), answer, parent, identity)
        if idles:
            status("idle", parent)
        if code == "late-result":
            time.sleep(1)  # lets the worker end the turn
            publish("execute_result", {"data": {"text/plain": code}, "execution_count": 1}, parent)
