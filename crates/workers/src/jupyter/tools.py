"""`tools` in a Jupyter kernel: each attribute is a function that a tool host runs.

Owns the connection to the worker's tool socket: one connection a call, closed if the code gives up.
"""

import json
import socket

_DEADLINE_S_MAX = 10**9
# Python raises an interrupt between two instructions. One that arrives as the code enters a wait for the
# answer would be raised only after the answer, so the wait begins again after this time.
_WAIT_S = 0.2

__all__ = ["ToolDeadlinePassed", "ToolError", "ToolHostGone", "ToolNotFound", "Tools"]


class ToolError(Exception):
    """A tool failed, or could not be called; the message is the tool's own."""

    def __init__(self, message="", tool=None, code="tool_failed", type=None):
        super().__init__(message)
        self.tool = tool
        self.code = code
        self.type = type


class ToolDeadlinePassed(ToolError, TimeoutError):
    """The call took longer than its deadline."""


class ToolHostGone(ToolError, ConnectionError):
    """The host that offered the tool is gone."""


class ToolNotFound(ToolError, AttributeError):
    """No host offers a tool of that name."""


_ERRORS = {
    "ToolDeadlinePassed": ToolDeadlinePassed,
    "ToolError": ToolError,
    "ToolHostGone": ToolHostGone,
    "ToolNotFound": ToolNotFound,
}
_BY_CODE = {
    "tool_deadline_passed": ToolDeadlinePassed,
    "tool_host_gone": ToolHostGone,
    "tool_not_found": ToolNotFound,
}


class Tools:
    """Functions that run outside of this session, in the tool host that offers them.

    tools.name(argument=value)              waits for the result: a JSON value
    await tools.name.awaited(argument=value)    the same in a coroutine; other tasks continue
    tools(deadline=5.0).name(...)           with seconds that the call may take
    tools["group.name"], tools.group.name
    tools.search(words="words")             finds tools; dir(tools) names them
    """

    def __init__(self, path, deadline_ms=None):
        self._path = path
        self._deadline_ms = deadline_ms

    def __call__(self, *, deadline=None):
        """The same tools, with a deadline in seconds for each call."""
        if deadline is None:
            return Tools(self._path)
        if not 0 < deadline <= _DEADLINE_S_MAX:
            raise ValueError("a deadline is a number of seconds, greater than 0")
        return Tools(self._path, max(1, int(deadline * 1000)))

    def __getattr__(self, name):
        if name in _ERRORS:
            return _ERRORS[name]
        if name[:1] == "_":
            raise AttributeError("there is no tools.%s; a tool of that name is tools[%r]" % (name, name))
        return self[name]

    def __getitem__(self, name):
        return Tool(self, name)

    def __dir__(self):
        listed = self._call("windlass.list", {})["tools"]
        return sorted({line["name"].partition(".")[0] for line in listed} | set(_ERRORS))

    def __repr__(self):
        return "<tools: tools.name(...) calls one, dir(tools) names them>"

    def _call(self, name, arguments):
        request = {"name": name, "arguments": arguments}
        if self._deadline_ms is not None:
            request["deadline_ms"] = self._deadline_ms
        line = json.dumps(request, allow_nan=False).encode() + b"\n"
        parts = []
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            try:
                connection.sendall(line)
            except BrokenPipeError:
                pass  # The worker refused the call before it read all of it: the answer says why.
            connection.settimeout(_WAIT_S)
            while not parts or not parts[-1].endswith(b"\n"):
                try:
                    part = connection.recv(1 << 20)
                except socket.timeout:
                    continue
                if not part:
                    raise ToolError("the worker closed the connection", name, "tool_cancelled")
                parts.append(part)
        answer = json.loads(b"".join(parts))
        if answer["ok"]:
            return answer["value"]
        error = answer["error"]
        if not isinstance(error, dict):
            error = {"message": str(error)}
        code = error.get("code") or "tool_failed"
        message = str(error.get("message") or "the tool failed (%s)" % code)
        raise _BY_CODE.get(code, ToolError)(message, name, code, error.get("type"))


class Tool:
    """One tool, or a group of tools."""

    def __init__(self, tools, name):
        self._tools = tools
        self._name = name

    def __call__(self, *positional, **named):
        return self._tools._call(self._name, self._arguments(positional, named))

    blocking = __call__

    async def awaited(self, *positional, **named):
        """Calls the tool in a thread, so that other tasks continue."""
        import asyncio

        return await asyncio.to_thread(self, *positional, **named)

    def __getattr__(self, name):
        if name[:1] == "_":
            raise AttributeError("there is no tools.%s.%s" % (self._name, name))
        return Tool(self._tools, "%s.%s" % (self._name, name))

    def __getitem__(self, name):
        return Tool(self._tools, "%s.%s" % (self._name, name))

    def __repr__(self):
        return "<tools.%s>" % self._name

    @property
    def __doc__(self):
        try:
            return self._described().get("description")
        except ToolError:
            return None

    def _described(self):
        return self._tools._call("windlass.describe", {"name": self._name})

    def _arguments(self, positional, named):
        """The arguments by name. The tool's schema names positional ones."""
        if not positional:
            return named
        schema = self._described().get("input_schema") or {}
        required = schema.get("required") or []
        names = sorted(schema.get("properties") or {}, key=lambda name: name not in required)
        if len(positional) > len(names):
            raise TypeError("tools.%s takes at most %d arguments" % (self._name, len(names)))
        arguments = dict(zip(names, positional))
        for name in named:
            if name in arguments:
                raise TypeError("tools.%s got two values for %s" % (self._name, name))
        return {**arguments, **named}
