"""Which thread reads the protocol, and how SIGINT is matched with it.

Owns the queue of frames, the right to read, and the decision whether a SIGINT concerns the running
code. Never runs the code, and never touches the socket while another thread reads it.

**Reading.** One thread reads at a time. The main thread has priority: while `reading` is set it may
block in a read, and all others stay away. Others (an event loop, a thread that waits for a tool)
poll, receive the available frames while they hold `lock`, and never block with it. The first of
them sets `shared`; until then the main thread needs no lock. The reader passes frames on while it
holds the right to read: tool results to their calls, all other frames to the main thread's queue.

The main thread holds the lock only while `_busy`, and no signal handler raises or reads then. So an
exception never leaves the lock held, and the lock is never requested twice.

**Interrupts.** The keeper sends `interrupt {turn}` and then one SIGINT. The frame names the turn;
the signal reaches code that does not read frames. So the inbox always looks at a signal together
with the frames that came before it:

* its frame names the running turn: raise KeyboardInterrupt;
* its frame names another turn: the signal is late, and is dropped;
* it has no frame: the code (or its child) sent it, so raise KeyboardInterrupt.

If the reader meets the frame first, while code waits for input, the frame ends the wait at once.
Its signal arrives later and is dropped.

**Lost interrupts.** The interpreter can lose an interrupt in two ways. A signal that arrives just
before the code enters a blocking call does not end that call: it is noted, and handled when the
call returns. And a KeyboardInterrupt in a finalizer (`__del__`, a weak reference's callback) is
swallowed; only `sys.unraisablehook` sees it. So while an interrupted turn continues, the keeper
nudges the worker process with SIGURG from time to time: the blocking call returns, and a swallowed
interrupt is raised again. Other programs ignore SIGURG. An interrupt that arrives while an exception of
a finalizer is shown counts as swallowed too.

**Event loops.** An interrupt that arrives in the code with which an event loop takes or notes a step
of its tasks is raised by the loop as its next step. Raised at once, it would lose a step (see
`loop_steps`). Until then it counts as swallowed: if the loop does not get there, a nudge raises it.
"""

import sys
from _collections import deque
from _functools import partial
from _signal import SIGINT, SIGURG, default_int_handler, getsignal, signal
from _thread import RLock

from .loop_steps import call_next, loop_at

# Instead of a turn's number: the frame was handled, its signal has not arrived yet.
_ACTED_ON = -1
# Instead of the live turn's number: this process is a child of the worker.
_FORKED = -2


def _is_below(stack, code):
    while stack is not None:
        if stack.f_code is code:
            return True
        stack = stack.f_back
    return False


class _Woken(KeyboardInterrupt):
    """A signal arrived while the reader slept. Raised and caught only in this module."""


class Inbox:
    def __init__(self, wire):
        self._wire = wire
        self._frames = deque()
        # The turn whose code may be interrupted now.
        self._live = None
        # The last turn that was interrupted while its code was not live.
        self._cancelled = None
        # The last turn that the keeper interrupted while its code was live.
        self.interrupted = None
        self.when_interrupted = None
        # The turn whose interrupt was raised in a finalizer and swallowed, or waits for an event loop.
        self._swallowed = None
        # Turns of interrupt frames whose signal has not arrived yet, oldest first.
        self._unmatched = []
        # Signals that are not handled yet, because the inbox was busy.
        self._signals = 0
        self._busy = False
        self._asleep = False
        # Calls of the code's signal handlers that were postponed: (handler, number, stack).
        self._deferred = deque()
        self._handler = self._on_signal
        self.lock = RLock()
        self.reading = False
        self.shared = False
        # The open tool calls; None before the first.
        self.calls = None
        # True when the keeper has sent `shutdown`.
        self._stopping = False

    def prepare(self):
        """Set up signals, once at the start."""
        signal(SIGURG, self._on_nudge)
        # A function without a frame: an interrupt can arrive only in `_on_unraisable` or below it.
        sys.unraisablehook = partial(self._on_unraisable, sys.unraisablehook)
        self.install()

    def install(self):
        """Install the SIGINT handler (again, if a turn's code replaced it)."""
        if getsignal(SIGINT) is not self._handler:
            signal(SIGINT, self._handler)
            # Signals that went to the other handler left frames behind that match nothing.
            self._unmatched.clear()

    def uninstall(self):
        """In a forked child all code belongs to the session, and SIGINT has its default meaning."""
        self._live = _FORKED
        self.lock = RLock()
        if getsignal(SIGINT) is self._handler:
            signal(SIGINT, default_int_handler)

    def adopt(self):
        """Start over on another socket, in a twin."""
        when_interrupted, calls = self.when_interrupted, self.calls
        self.__init__(self._wire)
        self.when_interrupted, self.calls = when_interrupted, calls
        self.install()

    def undisturbed(self, action):
        """Use the socket between turns, while no signal handler and no other thread reads it."""
        self._busy = True
        try:
            self._claim()
            return action()
        finally:
            self._leave()
            self._busy = False
            if self._signals or self._deferred:
                self._catch_up()

    def is_handler(self, handler):
        return handler is self._handler

    def check(self, turn):
        """Raise if the turn was interrupted before its code was live."""
        if self._cancelled == turn:
            self._interrupt()

    def guard(self, turn, action, *arguments):
        """Run `action` so that an interrupt of `turn` ends it. Returns the exception it raised.

        An interrupt may arrive at any bytecode between the two assignments to `_live`, even inside
        the `finally`. The outer `except` catches that one.
        """
        try:
            try:
                self._live = turn
                action(*arguments)
            finally:
                self._live = None
        except BaseException as error:
            self._live = None
            return error
        return None

    def take(self):
        """The next frame that is not an interrupt; waits for it.

        Raises KeyboardInterrupt when the live turn is interrupted.
        """
        if not self._frames:
            self.wait_for(self._frames)
        return self._frames.popleft()

    def wait_for(self, filled):
        """Read until the queue `filled` is not empty.

        For the main thread. Raises KeyboardInterrupt when the live turn is interrupted.
        """
        self._busy = True
        try:
            while not filled:
                if self._stopping and filled is not self._frames:
                    # The main loop handles the `shutdown`, and this turn must end first.
                    raise KeyboardInterrupt
                if self._deferred:
                    self._run_deferred()
                    continue
                self._claim()
                if filled:
                    # Another thread was reading, and has read it.
                    break
                self._sleep()
                self._sort()
                if self._signals:
                    self._look_at_signals()
                if self._unmatched:
                    self._heed_frame()
        finally:
            self._asleep = False
            self._leave()
            self._busy = False
            if self._signals or self._deferred:
                self._catch_up()

    def take_ready(self):
        """The next frame if it has arrived already, else None."""
        if not self._frames:
            self.take_in()
        return self._frames.popleft() if self._frames else None

    def take_in(self, around=None):
        """Receive the available frames without blocking. For the main thread.

        An event loop passes `around`, a function that is called with the receive function.
        """
        self._busy = True
        try:
            if around is None:
                self._receive()
            else:
                around(self._receive)
        finally:
            self._busy = False
            if self._signals or self._deferred:
                self._catch_up()
        if self._stopping and around is not None:
            raise KeyboardInterrupt

    def take_in_elsewhere(self, around=None):
        """The same for another thread. Returns False if the main thread is reading."""
        with self.lock:
            if self.reading:
                return False
            if around is None:
                self._receive_elsewhere()
            else:
                around(self._receive_elsewhere)
        return True

    def _receive_elsewhere(self):
        self._wire.poll()
        self._pass_on()

    def is_at_work(self):
        """Whether a finalizer called this thread back from inside the inbox. It cannot wait then.
        """
        return self.lock._is_owned() or self._wire.is_sending()

    def is_busy(self):
        """The same for the main thread."""
        return self._busy or self._wire.is_sending()

    def put_back(self, frame):
        self._frames.appendleft(frame)

    def _claim(self):
        self.reading = True
        if self.shared:
            # Wait until the current reader has finished.
            with self.lock:
                pass

    def _leave(self):
        self.reading = False
        if self.shared:
            self.calls.find_reader()

    def _receive(self):
        """Receive the available frames. In the main thread, while busy."""
        was_reading = self.reading
        if not was_reading:
            self._claim()
        try:
            self._wire.poll()
            self._sort()
        finally:
            if not was_reading:
                self._leave()

    def _sleep(self):
        # The handler raises only while `_asleep`, which is never outside this `try`.
        try:
            self._asleep = True
            if not self._signals and not self._deferred:
                self._wire.wait()
            self._asleep = False
        except _Woken:
            pass

    def _sort(self):
        # Checked after the bytes were received: they hold an answer to another thread's call only
        # if that thread has set this before.
        if self.shared:
            with self.lock:
                self._pass_on()
        else:
            self._pass_on()

    def _pass_on(self):
        for frame in self._wire.frames():
            kind = frame[0].get("kind")
            if kind == "tool_result":
                if self.calls is not None:
                    self.calls.deliver(*frame)
            elif kind == "interrupt":
                self._unmatched.append(frame[0].get("turn"))
            else:
                self._frames.append(frame)
                if kind == "shutdown":
                    self._stopping = True

    def _heed_frame(self):
        if self._live is not None and self._live in self._unmatched:
            self._unmatched[self._unmatched.index(self._live)] = _ACTED_ON
            self._interrupt()

    def _on_signal(self, _number, stack):
        self._signals += 1
        if self._asleep:
            self._asleep = False
            raise _Woken
        if not self._busy:
            self._look_at_signals(stack)

    def run_handler(self, given, number, stack):
        """Run a signal handler of the code. It may raise only into the running code."""
        if self._busy and not self._asleep:
            self._deferred.append((given, number, stack))
            return
        was_asleep = self._asleep
        if was_asleep:
            # The handler may ask for input or call a tool: the sleeping reader checks again
            # afterwards.
            self._asleep = self._busy = False
        try:
            given(number, stack)
        except BaseException:
            if self._live is not None:
                raise
        finally:
            if was_asleep:
                self._busy = True
        if was_asleep:
            raise _Woken

    def _run_deferred(self):
        self._busy = False
        try:
            self.run_handler(*self._deferred.popleft())
        finally:
            self._busy = True

    def _catch_up(self):
        """Do what was postponed while the inbox was busy."""
        try:
            while self._deferred:
                self.run_handler(*self._deferred.popleft())
        finally:
            self._look_at_signals()

    def _look_at_signals(self, stack=None):
        while self._signals:
            self._signals -= 1
            was_busy, self._busy = self._busy, True
            try:
                self._receive()
            finally:
                self._busy = was_busy
            self._match(stack)

    def _match(self, stack):
        """Match one signal with its frame, and raise if it concerns the live turn."""
        live, unmatched = self._live, self._unmatched
        if live is not None and live in unmatched:
            # Two signals in quick succession arrive as one, so older frames belong to this one too.
            del unmatched[: unmatched.index(live) + 1]
            self._interrupt(stack)
        elif unmatched:
            turn = unmatched.pop(0)
            if turn != _ACTED_ON:
                self._cancelled = turn
        elif live is not None:
            self._raise(stack)

    def _on_nudge(self, _number, stack):
        is_open = self._asleep or not self._busy
        if self._live == self._swallowed is not None and is_open:
            self._raise(stack)

    def _raise(self, stack):
        """Raise KeyboardInterrupt at this frame, or let the event loop raise it that runs there."""
        self._swallowed = self._live
        if _is_below(stack, Inbox._on_unraisable.__code__):
            # What shows an exception would swallow this one. A nudge raises it.
            return
        loop = loop_at(stack)
        if loop is None:
            self._swallowed = None
            raise KeyboardInterrupt
        call_next(loop, self._raise_swallowed)

    def _raise_swallowed(self):
        if self._live == self._swallowed is not None:
            self._raise(None)

    def _on_unraisable(self, show, unraisable):
        """`sys.unraisablehook`; `show` is the hook before."""
        live = self._live
        if unraisable.exc_type is KeyboardInterrupt and live == self.interrupted is not None:
            self._swallowed = live
        else:
            show(unraisable)

    def _interrupt(self, stack=None):
        self.interrupted = self._live
        was_busy, self._busy = self._busy, True
        try:
            self.when_interrupted()
            if self.calls is not None:
                self.calls.interrupt()
        finally:
            self._busy = was_busy
        self._raise(stack)
