"""Whether a signal has met the code with which an event loop takes and notes the steps of its tasks.

Owns what is known about the frames of `asyncio`. An exception that is raised in the loop's own code
can lose the step that the loop has just taken or is about to note: its task never goes on, and
whoever waits for the task waits for ever. The loop takes a step between those of its tasks. It notes
one also within a step, when the step sets the result of a future. Never imports `asyncio`.
"""

import sys

_COROUTINE = 0x80


def loop_at(stack):
    """The loop that takes or notes a step at this frame; None if other code runs."""
    base = sys.modules.get("asyncio.base_events")
    # While `asyncio` is imported, its modules are incomplete.
    loop = getattr(base, "BaseEventLoop", None)
    if loop is None:
        return None
    turn = loop._run_once.__code__
    note, note_last = loop.call_soon.__code__, loop._call_soon.__code__
    directory = turn.co_filename[: -len("base_events.py")]
    while stack is not None:
        code = stack.f_code
        if code is turn or code is note or code is note_last:
            return stack.f_locals["self"]
        # A coroutine of `asyncio`, such as `sleep`, is a part of a step.
        if code.co_flags & _COROUTINE or not code.co_filename.startswith(directory):
            return None
        stack = stack.f_back
    return None


def call_next(loop, action, *arguments):
    """Let the loop call this before anything else, and wake it if it is about to wait."""
    handle = sys.modules["asyncio.events"].Handle(action, arguments, loop, None)
    loop._ready.appendleft(handle)
    loop._write_to_self()
