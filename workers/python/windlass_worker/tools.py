"""`tools`, as the session's code sees it: each attribute is a function that a tool host runs.

Owns the names. Every session loads this module, so it does very little: the rest is imported when
the code first uses a tool.
"""

from _thread import RLock

_ERRORS = frozenset(("ToolError", "ToolDeadlinePassed", "ToolHostGone", "ToolNotFound"))
# The longest deadline, far longer than any turn.
_DEADLINE_S_MAX = 10**9

_USAGE = """Functions that run outside of this session, in the tool host that offers them.

tools.name(argument=value)          waits for the result: a JSON value
await tools.name(argument=value)    the same where an event loop runs, as with top-level `await`;
                                    asyncio.gather(tools.a(), tools.b()) runs both at once
tools.name.blocking(...)            waits even there
tools(deadline=5.0).name(...)       with seconds that the call may take
tools["group.name"], tools.group.name

Errors are tools.ToolError and its kinds ToolDeadlinePassed, ToolHostGone and ToolNotFound.
tools.search("words") finds tools, dir(tools) names them, help(tools.name) describes one.
"""


class Source:
    """The source of tools; set up at the first use."""

    def __init__(self, wire, inbox, turns):
        self._parts = wire, inbox, turns
        self._inbox = inbox
        self._lock = RLock()
        self._inspect = None
        # None until the first use.
        self.catalogue = None
        self.tools = Tools(self)

    def opened(self):
        if self.catalogue is None:
            from .catalogue import Catalogue

            with self._lock:
                catalogue = Catalogue(*self._parts)
                if self.catalogue is None:
                    if self._inspect is not None:
                        catalogue.sign_all(self._inspect)
                    self._inbox.calls = catalogue.calls
                    self.catalogue = catalogue
        return self.catalogue

    def end_turn(self):
        """The turn is over: end its calls and forget its names."""
        self.tools._forget()
        self.catalogue.end_turn()

    def enter_child(self):
        self._lock = RLock()
        if self.catalogue is not None:
            self.catalogue.calls.enter_child()

    def sign(self, inspect):
        """`inspect` was imported."""
        self._inspect = inspect
        if self.catalogue is not None:
            self.catalogue.sign_all(inspect)


class Tools:
    __module__ = "tools"

    def __init__(self, source, deadline_ms=None):
        self._source = source
        self._deadline_ms = deadline_ms

    def __call__(self, *, deadline=None):
        """The same tools, with a deadline in seconds for each call."""
        if deadline is None:
            return Tools(self._source)
        if not 0 < deadline <= _DEADLINE_S_MAX:
            raise ValueError("a deadline is a number of seconds, greater than 0")
        return Tools(self._source, max(1, int(deadline * 1000)))

    def __getattr__(self, name):
        if name in _ERRORS:
            return self._source.opened().errors[name]
        if name[:1] == "_":
            why = "there is no tools.%s; a tool of that name is tools[%r]" % (name, name)
            raise AttributeError(why)
        found = self[name]
        if self._source.tools is self:
            self.__dict__[name] = found
        return found

    def __getitem__(self, name):
        catalogue = self._source.opened()
        described = catalogue.describe(name)
        if described.get("kind") == "group":
            return Group(catalogue, described, self._deadline_ms)
        return catalogue.function(name, self._deadline_ms)

    def __dir__(self):
        names = {name.partition(".")[0] for name, _ in self._listed()}
        return sorted(names | _ERRORS)

    def __repr__(self):
        if self._deadline_ms is None:
            return "<tools: tools.name(...) calls one, dir(tools) names them>"
        return "<tools with a deadline of %g s>" % (self._deadline_ms / 1000)

    @property
    def __doc__(self):
        lines = ["    %s  %s" % line for line in self._listed()]
        said = "Now there are:" if lines else "Now there are none."
        return _USAGE + "\n".join(["", said, *lines])

    def _listed(self):
        try:
            return self._source.opened().listed()
        except self.ToolError:
            return []

    def _forget(self):
        for name in tuple(self.__dict__):
            if name[0] != "_":
                self.__dict__.pop(name, None)


class Group:
    """Tools that share the part of the name before the dot."""

    __module__ = "tools"

    def __init__(self, catalogue, described, deadline_ms):
        self._catalogue = catalogue
        self._name = described["name"]
        self._lines = described["tools"]
        self._deadline_ms = deadline_ms

    def __getattr__(self, name):
        if name[:1] == "_":
            raise AttributeError("there is no tools.%s.%s" % (self._name, name))
        function = self._catalogue.function("%s.%s" % (self._name, name), self._deadline_ms)
        self.__dict__[name] = function
        return function

    def __getitem__(self, name):
        return self._catalogue.function("%s.%s" % (self._name, name), self._deadline_ms)

    def __dir__(self):
        return sorted(line["name"].rpartition(".")[2] for line in self._lines)

    def __repr__(self):
        return "<tools.%s: %s>" % (self._name, ", ".join(dir(self)))

    @property
    def __doc__(self):
        lines = ("    %s  %s" % (line["name"], line.get("summary") or "") for line in self._lines)
        return "\n".join(["The tools of tools.%s:" % self._name, "", *lines])
