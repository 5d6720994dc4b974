"""Two programs for the tool figures: `host` offers the tools with the Python SDK; `bare` measures the baseline,
two processes and a socket, and prints its times as JSON."""

import json
import os
import socket
import struct
import sys
import time


def host(session):
    """Offers the tools to the session until standard input is closed."""
    from windlass import Windlass

    with Windlass() as node:
        attached = node.attach(session)

        def echo(value):
            return value

        def wait(ms: int) -> int:
            time.sleep(ms / 1000)
            return ms

        attached.tools(echo, wait)
        print("ready", flush=True)
        sys.stdin.read()


def bare(rounds, bytes_each_way):
    """Measures round trips between two processes: one byte each way, or JSON with text of that size."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        answer_all(theirs, bytes_each_way)
        os._exit(0)
    theirs.close()
    text = "x" * bytes_each_way
    times = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        if bytes_each_way:
            send(ours, {"value": text})
            answered = receive(ours) == text
        else:
            ours.sendall(b"?")
            answered = ours.recv(64) == b"!"
        times.append(time.perf_counter_ns() - started)
        assert answered
    ours.close()
    os.wait()
    print(json.dumps(times))


def answer_all(peer, bytes_each_way):
    while True:
        if bytes_each_way:
            asked = receive(peer)
            if asked is None:
                return
            send(peer, asked["value"])
        else:
            if not peer.recv(64):
                return
            peer.sendall(b"!")


def send(peer, value):
    data = json.dumps(value).encode()
    peer.sendall(struct.pack(">I", len(data)) + data)


def receive(peer):
    head = peer.recv(4)
    if not head:
        return None
    size = struct.unpack(">I", head)[0]
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        have += peer.recv_into(view[have:])
    return json.loads(data)


if sys.argv[1] == "host":
    host(sys.argv[2])
else:
    bare(int(sys.argv[2]), int(sys.argv[3]))
