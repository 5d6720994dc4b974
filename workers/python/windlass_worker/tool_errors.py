"""The exceptions of tools, as the session's code sees them.

Owns the exceptions and makes them from answers. Imported with the first call.
"""


class ToolError(Exception):
    """A tool failed, or could not be called; the message is the tool's own.

    `tool` is its name. `code` says what happened: `tool_failed` if the tool itself raised, then
    `type` is the class of its error.
    """

    def __init__(self, message="", tool=None, code="tool_failed", type=None):
        super().__init__(message)
        self.tool = tool
        self.code = code
        self.type = type

    def __reduce__(self):
        # Pickled by a function: `tools`, the class's module name, is not a module.
        return failure, (str(self), self.tool, self.code, self.type)


class ToolDeadlinePassed(ToolError, TimeoutError):
    """The call took longer than its deadline."""


class ToolHostGone(ToolError, ConnectionError):
    """The host that offered the tool is gone."""


class ToolNotFound(ToolError, AttributeError):
    """No host offers a tool of that name."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        # Keeps the interpreter from suggesting names: the message does so already.
        self.name = None


CLASSES = {c.__name__: c for c in (ToolError, ToolDeadlinePassed, ToolHostGone, ToolNotFound)}
for _class in CLASSES.values():
    _class.__module__ = "tools"

_BY_CODE = {
    "tool_deadline_passed": ToolDeadlinePassed,
    "tool_host_gone": ToolHostGone,
    "tool_not_found": ToolNotFound,
}


def failure(message, tool, code, type=None):
    """The error for a code."""
    return _BY_CODE.get(code, ToolError)(message, tool, code, type)


def from_answer(answer, tool):
    """The error in an answer."""
    if not isinstance(answer, dict):
        answer = {"message": str(answer)}
    code = answer.get("code") or "tool_failed"
    message = answer.get("message") or "the tool failed (%s)" % code
    return failure(str(message), tool, code, answer.get("type"))
