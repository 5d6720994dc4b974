"""A large call that an exception cuts short, at each bytecode: its frames are finished exactly once, or
there are none.

Owns no worker process: the exception comes from a trace function, so that every point is tried.
"""

import json
import os
import socket
import struct
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from windlass_worker import calls as calls_module
from windlass_worker.calls import Call, Calls
from windlass_worker.wire import Wire

HEADER = b'{"kind":"tool_call","turn":%d,"call":%d,"name":"t"'
# The functions that are cut. Within `_flush`, a trace could come between a lock and its `with`, where
# the interpreter runs no signal handler.
FUNCTIONS = ("send", "send_noted", "_send_outgoing")
PARTS = [b"first", b"second", b"third", b"last"]


class Turns:
    current = 1


class Cut(unittest.TestCase):
    def setUp(self):
        self.chunks, self.limit = calls_module.chunks, calls_module.CHUNK_BYTES_MAX
        calls_module.chunks, calls_module.CHUNK_BYTES_MAX = (lambda body: iter(PARTS)), 1

    def tearDown(self):
        calls_module.chunks, calls_module.CHUNK_BYTES_MAX = self.chunks, self.limit

    def test_an_exception_at_each_bytecode_leaves_a_finished_call_or_none(self):
        at, was_raised, found = 0, True, set()
        while was_raised:
            kinds, was_raised = self.cut(at)
            found.add(tuple(kinds))
            at += 1
        self.assertGreater(at, 50)
        whole = ("more", "more", "more", "last")
        cancelled = [("cancel",), ("more", "cancel", "last"), ("more", "more", "cancel", "last"),
                     ("more", "more", "more", "cancel", "last"), (*whole, "cancel")]
        self.assertEqual(found, {whole, *cancelled})

    def cut(self, at):
        """The frames of a call that is cut at the bytecode with that number, and whether it was."""
        ours, theirs = socket.socketpair()
        wire = Wire()
        wire.attach(theirs.detach())
        calls = Calls(wire, None, Turns)
        call = Call(7, 1, "t")
        calls.open[7] = call
        left, was_raised = [at], False

        def trace(frame, event, _):
            if frame.f_code.co_name not in FUNCTIONS:
                return trace
            frame.f_trace_opcodes = True
            if event == "opcode":
                left[0] -= 1
                if left[0] < 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        try:
            sys.settrace(trace)
            calls.send(call, HEADER, b"a large body")
        except KeyboardInterrupt:
            was_raised = True
        finally:
            sys.settrace(None)
        if was_raised:
            calls.give_up(call)
        wire.close()
        return [kind(header) for header in headers(ours)], was_raised


def kind(header):
    if header["kind"] == "tool_cancel":
        return "cancel"
    return "more" if header.get("more") else "last"


def headers(end):
    with end, end.makefile("rb") as stream:
        while True:
            lengths = stream.read(8)
            if not lengths:
                return
            rest, size = struct.unpack(">II", lengths)
            yield json.loads(stream.read(rest - 4)[:size])


if __name__ == "__main__":
    unittest.main()
