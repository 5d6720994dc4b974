"""Tool calls in async code: futures, and event loops that read the socket while they wait.

Owns the loops that have open calls. A loop watches the socket as long as it has an open call.
Imported with the first call in async code, when `asyncio` is loaded already.
"""

from _thread import get_ident
from asyncio import Future

from .calls import Call


class Result(Future):
    """The future result of a tool: `await` it."""

    def cancel(self, *arguments, **options):
        """Cancel the call; the tool's host is told."""
        if not super().cancel(*arguments, **options):
            return False
        self.call.give_up()
        return True

    def __repr__(self):
        tool = self.call.tool
        if self.cancelled():
            state = "cancelled"
        else:
            state = "came; await it" if self.done() else "is on its way; await it"
        return "<the result of tools.%s %s>" % (tool, state)

    def __getitem__(self, _key):
        raise TypeError(self._advice())

    def __getattr__(self, name):
        raise AttributeError("%r: %s" % (name, self._advice() if name != "call" else ""))

    def _advice(self):
        tool = self.call.tool
        return (
            "this is not yet the result: an event loop is running here, so write "
            "`await tools.%s(...)`, or `tools.%s.blocking(...)`" % (tool, tool)
        )


class LoopCall(Call):
    """A call whose result is a future."""

    __slots__ = ("loop", "future", "is_mains")

    def __init__(self, number, turn, tool, loop, is_mains):
        super().__init__(number, turn, tool)
        self.loop = loop
        self.is_mains = is_mains
        self.future = Result(loop=loop.loop)
        self.future.call = self

    def wake(self, _calls):
        self.done.append(True)
        loop = self.loop
        if loop.is_reading and get_ident() == loop.reader:
            loop.came.append(self)
            return
        try:
            loop.loop.call_soon_threadsafe(self.finish)
        except RuntimeError:
            # The loop is closed, so no code waits any more.
            pass

    def finish(self):
        """Set the future's result. Runs in the loop's thread."""
        if self.error is not None:
            self.loop.calls.say_cancelled(self)
        if not self.future.done():
            self._settle()
        # Remove the call last: the code may make its next call now, while the loop still watches.
        self.loop.remove(self)

    def _settle(self):
        try:
            self.future.set_result(self.value())
        except Exception as error:
            self.future.set_exception(error)
            if self.error is not None:
                # The call was cancelled: no warning is needed if the code ignores the error.
                self.future.exception()

    def give_up(self):
        self.loop.remove(self)
        self.loop.calls.give_up(self)

    def abandon(self):
        self.done.append(True)
        self.loop.stop_watching()
        try:
            self.future.cancel()
        except RuntimeError:
            # The loop was closed.
            pass


class Loop:
    """An event loop with open calls."""

    def __init__(self, calls, loop):
        self.calls = calls
        self.loop = loop
        # While this loop reads frames, `reader` is its thread, and `came` holds the calls that
        # these frames end.
        self.is_reading = False
        self.reader = None
        self.came = []
        self._open = set()
        self._is_watched = False

    def add(self, call):
        self._open.add(call)
        if not self._is_watched:
            self.loop.add_reader(self.calls.wire.fd, self._on_readable)
            self._is_watched = True

    def remove(self, call):
        self._open.discard(call)
        if not self._open and self._is_watched and not self.loop.is_closed():
            self.loop.call_soon(self._rest)

    def stop_watching(self):
        self._open.clear()
        self._rest()

    def _rest(self):
        if not self._open and self._is_watched:
            self.calls.loops.pop(self.loop, None)
            if not self.loop.is_closed():
                self.loop.remove_reader(self.calls.wire.fd)
            self._is_watched = False

    def _on_readable(self):
        inbox, thread = self.calls.inbox, get_ident()
        self.reader = thread
        if thread == self.calls.turns.main:
            inbox.take_in(self._receive_and_finish)
        elif inbox.take_in_elsewhere(self._receive):
            self._finish_came()

    def _receive_and_finish(self, receive):
        self._receive(receive)
        self._finish_came()

    def _receive(self, receive):
        self.is_reading = True
        try:
            receive()
        finally:
            self.is_reading = False

    def _finish_came(self):
        came, self.came = self.came, []
        for call in came:
            call.finish()


def start(calls, loop, header, tool, body):
    """Send a call; returns a future of the loop, which runs in this thread."""
    thread = get_ident()
    watched = calls.loops.get(loop)
    if watched is None:
        watched = calls.loops[loop] = Loop(calls, loop)
    if thread == calls.turns.main:
        turn = calls.turn_of_main(tool)
        call = LoopCall(calls.next_number(), turn, tool, watched, True)
        calls.open[call.number] = call
    else:
        call = calls.new(lambda *names: LoopCall(*names, watched, False), thread, tool)
    try:
        watched.add(call)
        calls.send(call, header, body)
    except BaseException:
        call.give_up()
        raise
    return call.future
