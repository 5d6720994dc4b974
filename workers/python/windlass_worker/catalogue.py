"""The available tools, and the functions that call them.

Owns what the node has said about tools in this turn, and the functions made from that. Imported
when the code first uses `tools`.
"""

from sys import modules

from .calls import ARGUMENTS_BYTES_MAX, Calls
from .plain_json import encoded, encoded_arguments
from .signature import Parameters
from .tool_errors import CLASSES, failure
from .wire import quoted

# Functions that are kept from turn to turn, for tools that have not changed.
FUNCTIONS_MAX = 1024

_HEADER = b'{"kind":"tool_call","turn":%%d,"call":%%d,"name":%b'
# The node's own tools. They do not describe themselves.
_OWN_GROUP = "windlass."


class Catalogue:
    errors = CLASSES

    def __init__(self, wire, inbox, turns):
        self.calls = Calls(wire, inbox, turns)
        # Descriptions that were fetched in this turn.
        self._described = {}
        # Functions made so far, with the descriptions that they were made from.
        self._functions = {}
        self._inspect = None

    def describe(self, name):
        """The description of a name: a tool or a group."""
        described = self._described.get(name)
        if described is None:
            if name.startswith(_OWN_GROUP):
                return {"kind": "tool", "name": name}
            described = self._described[name] = self._ask("windlass.describe", {"name": name})
        return described

    def listed(self):
        """All tools, as (name, summary)."""
        answer = self._ask("windlass.list", {})
        return [(line["name"], line.get("summary") or "") for line in answer["tools"]]

    def function(self, name, deadline_ms=None):
        """The function that calls a tool."""
        described, known = self.describe(name), self._functions.get((name, deadline_ms))
        # The same function in all turns, as long as the tool is the same.
        if known is not None and known[0] == described:
            return known[1]
        function = self._made(name, described, deadline_ms)
        if len(self._functions) >= FUNCTIONS_MAX:
            self._functions.clear()
        self._functions[name, deadline_ms] = described, function
        if self._inspect is not None:
            self._sign(function, described)
        return function

    def sign_all(self, inspect):
        """`inspect` was imported, so the code may ask for signatures from now on."""
        self._inspect = inspect
        for described, function in tuple(self._functions.values()):
            self._sign(function, described)

    def end_turn(self):
        self._described.clear()
        self.calls.end_turn()

    def _ask(self, tool, arguments):
        """An answer of the node itself, which arrives at once."""
        return self.calls.call(_HEADER % quoted(tool), tool, encoded(arguments))

    def _sign(self, function, described):
        signature = Parameters(described.get("input_schema")).signature(self._inspect)
        function.__signature__ = function.blocking.__signature__ = signature

    def _made(self, name, described, deadline_ms):
        calls, parameters = self.calls, Parameters(described.get("input_schema"))
        header = _HEADER % quoted(name).replace(b"%", b"%%")
        if deadline_ms is not None:
            header += b',"deadline_ms":%d' % deadline_ms

        def function(*positional, **named):
            body = _body(name, parameters, positional, named)
            loop = running_loop()
            if loop is None:
                return calls.call(header, name, body)
            return calls.start(loop, header, name, body)

        def blocking(*positional, **named):
            return calls.call(header, name, _body(name, parameters, positional, named))

        function.blocking = blocking
        group, _, last = name.rpartition(".")
        for made in (function, blocking):
            made.__name__ = last
            made.__qualname__ = name
            made.__module__ = "tools." + group if group else "tools"
            made.__doc__ = parameters.docstring(described.get("description"))
        return function


def running_loop():
    """The event loop that runs in this thread, if one does."""
    events = modules.get("asyncio.events")
    running = getattr(events, "_get_running_loop", None)
    return running() if running is not None else None


def _body(name, parameters, positional, named):
    arguments = parameters.bind(name, positional, named)
    try:
        body = encoded_arguments(arguments)
    except (TypeError, ValueError):
        raise _unsendable(name, arguments) from None
    if len(body) > ARGUMENTS_BYTES_MAX:
        message = "the arguments are %d bytes, over the limit of %d" % (
            len(body), ARGUMENTS_BYTES_MAX
        )
        raise failure(message, name, "message_too_large")
    return body


def _unsendable(name, arguments):
    """An error that names the argument that is not JSON, and why."""
    for argument, value in arguments.items():
        try:
            encoded_arguments({argument: value})
        except (TypeError, ValueError) as error:
            why = "%s() argument %r cannot be sent as JSON: %s" % (name, argument, error)
            return TypeError(why)
    return TypeError("%s() arguments cannot be sent as JSON" % name)
