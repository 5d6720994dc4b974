"""Tools for the tests: functions give the answers of a node and a tool host.

Owns the answers. A tool is a function of its named arguments. It may return a value, raise `Fail`,
or return `LATER`: then the test answers with `answer`.
"""

import json
import unittest

from keeper import Keeper, Told, frame

CHUNK = 196_604
LATER = object()


class Fail(Exception):
    """The error with which a tool answers."""

    def __init__(self, message, **fields):
        super().__init__(message)
        self.body = {"message": message, **fields}


class Host:
    def __init__(self, keeper):
        self.keeper = keeper
        self.tools = {}
        self.described = {}
        # All tool calls so far, without those of the node's own tools: (name, arguments, header).
        self.calls = []
        self.cancelled = []
        self._parts = {}

    def offer(self, name, function, description="", **schema):
        self.tools[name] = function
        self.described[name] = (description, {"type": "object", **schema})

    def run(self, code, *answers):
        """Run one turn, and answer its calls and input requests."""
        self.keeper.start(code)
        return self.until_idle(*answers)

    def until_idle(self, *answers):
        said, answers = [], list(answers)
        while True:
            told = self.keeper.until("tool_call", "tool_cancel", "stdin_wait", "idle")
            said += told.events
            kind = told.last["kind"]
            if kind == "idle" and told.last["turn"] == self.keeper.turn:
                return Told(said)
            if kind == "stdin_wait":
                self.keeper.answer(answers.pop(0))
            else:
                self.take(told.last)

    def until_called(self, count):
        """Answer until there were `count` calls, and return them."""
        while len(self.calls) < count:
            self.take(self.keeper.pick("tool_call", "tool_cancel"))
        return self.calls

    def take(self, event):
        call = event["call"]
        if event["kind"] == "tool_cancel":
            self.cancelled.append(call)
            self._parts.pop(call, None)
            return
        self._parts.setdefault(call, []).append(event["body"])
        if event.get("more"):
            return
        arguments = json.loads(b"".join(self._parts.pop(call)))
        if not event["name"].startswith("windlass."):
            self.calls.append((event["name"], arguments, event))
        try:
            value = self._call(event["name"], arguments)
        except Fail as error:
            self.fail(event, **error.body)
        else:
            if value is not LATER:
                self.answer(event, value)

    def answer(self, call, value):
        body = json.dumps(value).encode()
        at = range(0, len(body), CHUNK)
        for start in at:
            more = {"more": True} if start != at[-1] else {}
            self.send(call, body[start : start + CHUNK], ok=True, **more)

    def fail(self, call, **error):
        self.send(call, json.dumps(error).encode(), ok=False)

    def send(self, call, body, **fields):
        header = {"kind": "tool_result", "turn": call["turn"], "call": call["call"], **fields}
        self.keeper.send_raw(frame(header, body))

    def _call(self, name, arguments):
        if name == "windlass.describe":
            return self._describe(**arguments)
        if name == "windlass.list":
            return {"tools": self._lines(self.described), "more": False}
        if name not in self.tools:
            raise Fail("there is no tool %r" % name, code="tool_not_found")
        return self.tools[name](**arguments)

    def _describe(self, name):
        if name in self.described:
            description, schema = self.described[name]
            return {"kind": "tool", "name": name, "description": description, "input_schema": schema}
        members = [other for other in self.described if other.startswith(name + ".")]
        if not members:
            raise Fail("there is no tool %r" % name, code="tool_not_found")
        return {"kind": "group", "name": name, "tools": self._lines(members)}

    def _lines(self, names):
        return [{"name": n, "summary": self.described[n][0].strip().split("\n")[0]} for n in sorted(names)]


class WithHost(unittest.TestCase):
    """Tests with a worker and the tools `echo` (its argument), `fail` and `wait` (never answers)."""

    def setUp(self):
        self.keeper = Keeper()
        self.addCleanup(self.keeper.close)
        self.host = Host(self.keeper)
        self.host.offer("echo", lambda value=None: value, properties={"value": {}})
        self.host.offer("wait", lambda **_: LATER, properties={"value": {}})
        self.host.offer("fail", self._fail)
        self.run_code = self.host.run

    def _fail(self, message="it broke", **fields):
        raise Fail(message, **fields)

    def check(self, code, shown, *answers):
        """Run the code, and check the value of its last expression."""
        told = self.run_code(code, *answers)
        self.assertEqual((told.result, told.traceback), (shown + "\n" if shown else "", ""), code)
        return told
