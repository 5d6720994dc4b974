"""A small keeper for the tests: a real worker process, a real socket pair, real pipes.

Owns the process and everything it sends, in the order in which a keeper would pass it on: the pipes
are drained before a frame is read. Never sleeps: it waits for the worker's messages, with a
deadline.
"""

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE_DIRECTORY = os.path.dirname(HERE)
# Not beside the sources: the node's build watches their directory.
CACHE_DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(PACKAGE_DIRECTORY)), "target", "pycache")
BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv.pop()); "
    "from windlass_worker.main import main; del sys.path[0]; main()"
)
PYTHON = os.environ.get("WORKER_PYTHON", sys.executable)
DEADLINE_S = float(os.environ.get("WORKER_DEADLINE_S", "20"))
CHUNK = 128 * 1024
READS_MAX = 64
# How often an interrupted turn that continues is nudged.
NUDGE_S = 0.05


class Keeper:
    def __init__(self, cwd=None, python=PYTHON, environment=None, command=None, fd=None):
        ours, theirs = socket.socketpair()
        if fd is not None:
            moved = socket.socket(fileno=os.dup2(theirs.fileno(), fd))
            theirs.close()
            theirs = moved
        self.socket = ours
        self.socket.setblocking(False)
        self.process = subprocess.Popen(
            command or [python, "-u", "-X", "pycache_prefix=" + CACHE_DIRECTORY, "-c", BOOTSTRAP, PACKAGE_DIRECTORY],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            cwd=cwd,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": "/tmp",
                "WINDLASS_FD": str(theirs.fileno()),
                **(environment or {}),
            },
        )
        theirs.close()
        self.pipes = {1: self.process.stdout.fileno(), 2: self.process.stderr.fileno()}
        for fd in self.pipes.values():
            os.set_blocking(fd, False)
        self.turn = 0
        # When to nudge next; None outside of an interrupt.
        self.nudge_at = None
        self.said = []
        self._bytes = b""
        self._closed = set()
        self.ready = self.until("worker_ready")

    def close(self):
        self.socket.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # To the worker.

    def send(self, body=b"", **header):
        parts = [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)] or [b""]
        for part in parts:
            more = {} if part is parts[-1] else {"more": True}
            self.send_raw(frame({**header, **more}, part))

    def send_raw(self, data):
        while data:
            try:
                data = data[self.socket.send(data) :]
            except BlockingIOError:
                # A keeper never stops reading in order to write.
                self._take_in(write=True)

    def start(self, code):
        self.turn += 1
        self.send(code.encode(), kind="turn_start", turn=self.turn)

    def answer(self, data, **fields):
        self.send(data, kind="turn_input", turn=self.turn, **fields)

    def interrupt(self, turn=None):
        self.send(kind="interrupt", turn=self.turn if turn is None else turn)
        self.signal()
        self.nudge_at = time.monotonic() + NUDGE_S

    def signal(self):
        os.killpg(self.process.pid, signal.SIGINT)

    # From the worker.

    def until(self, *kinds, **fields):
        """All messages up to and including the first one of these kinds."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            for at, event in enumerate(self.said):
                if event.get("kind") in kinds and all(event.get(k) == v for k, v in fields.items()):
                    told, self.said = Told(self.said[: at + 1]), self.said[at + 1 :]
                    return told
            self._take_in(deadline=deadline)

    def pick(self, *kinds):
        """The first message of one of these kinds; the others stay."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            for at, event in enumerate(self.said):
                if event.get("kind") in kinds:
                    return self.said.pop(at)
            self._take_in(deadline=deadline)

    def until_printed(self, text):
        """Wait until the pipes have delivered that text, which stays in `said`."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in Told(self.said).printed:
            self._take_in(deadline=deadline)

    def run(self, code, *answers):
        """Run one turn, with an answer to each input request."""
        self.start(code)
        said = []
        for answer in answers:
            said += self.until("stdin_wait").events
            self.answer(answer)
        return Told(said + self.until("idle", turn=self.turn).events)

    def ended(self):
        """The exit status, once the process has ended by itself; its messages are in `said`."""
        deadline = time.monotonic() + DEADLINE_S
        while len(self._closed) < 3:
            self._take_in(deadline=deadline)
        return self.process.wait(DEADLINE_S)

    def _take_in(self, write=False, deadline=None):
        waiting = [f for f in (self.socket.fileno(), *self.pipes.values()) if f not in self._closed]
        left = DEADLINE_S if deadline is None else deadline - time.monotonic()
        readable, writable, _ = select.select(
            waiting, [self.socket] if write else [], [], min(NUDGE_S, max(left, 0))
        )
        if self.nudge_at is not None and time.monotonic() >= self.nudge_at:
            os.kill(self.process.pid, signal.SIGURG)
            self.nudge_at = time.monotonic() + NUDGE_S
        if left < 0:
            raise AssertionError("the worker did not say it; so far: %.3000r" % self.said)
        data = self._read(self.socket.fileno()) if self.socket.fileno() in readable else b""
        for stream, fd in self.pipes.items():
            if fd not in self._closed:
                text = self._read(fd)
                if text:
                    self.said.append({"fd": stream, "body": text})
        self._bytes += data
        self._parse()

    def _read(self, fd):
        """The available bytes; of a flood, a part."""
        parts = []
        try:
            while len(parts) < READS_MAX:
                parts.append(os.read(fd, 1 << 20))
                if not parts[-1]:
                    self._closed.add(fd)
                    break
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self._closed.add(fd)
        return b"".join(parts)

    def _parse(self):
        while len(self._bytes) >= 8:
            rest, size = struct.unpack_from(">II", self._bytes)
            assert rest <= 256 * 1024 and size <= 64 * 1024, "a frame is over the limit"
            if len(self._bytes) < 4 + rest:
                return
            header = json.loads(self._bytes[8 : 8 + size])
            self.said.append({**header, "body": self._bytes[8 + size : 4 + rest]})
            if header["kind"] == "idle":
                self.nudge_at = None
            self._bytes = self._bytes[4 + rest :]


class Told:
    """The messages of a worker: events from the pipes have `fd`, messages have `kind`."""

    def __init__(self, events):
        self.events = events

    def fd(self, number):
        return b"".join(event["body"] for event in self.events if event.get("fd") == number)

    def stream(self, name, background=False):
        return b"".join(
            event["body"]
            for event in self.all("output")
            if event["stream"] == name and event.get("background", False) == background
        ).decode()

    def all(self, kind):
        return [event for event in self.events if event.get("kind") == kind]

    @property
    def printed(self):
        return self.fd(1).decode()

    @property
    def errors(self):
        return self.fd(2).decode()

    @property
    def result(self):
        return self.stream("result")

    @property
    def traceback(self):
        return self.stream("traceback")

    @property
    def last(self):
        return self.events[-1]

    @property
    def outcome(self):
        return self.last["outcome"]

    @property
    def error(self):
        return self.last.get("error")

    def displays(self):
        """(mime, bytes, id, update) of each display, with its frames joined."""
        found, parts = [], b""
        for event in self.all("display"):
            parts += event["body"]
            if not event.get("more"):
                found.append((event["mime"], parts, event.get("id"), event.get("update", False)))
                parts = b""
        return found


def frame(header, body=b""):
    text = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body
