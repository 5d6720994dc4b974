"""The open tool calls, and the wait for their results.

Owns the call numbers, the parts of results that have arrived, and which thread reads while threads
wait. Does not know what a tool is: `catalogue` does.

* The main thread has priority at the socket. It reads until its result has arrived.
* Each other thread waits at its own gate (a lock). One of them, the *reader*, polls the socket for
  all of them while the main thread does not read. When the reader's own result has arrived, another
  thread becomes the reader.
* Event loops have futures (`loop_calls`).

The state of a call changes only in the thread that holds the right to read (see `inbox`), so no
thread is woken too early or never. A call that is not in `open` is over: a later result with its
number is dropped.
"""

from _thread import allocate_lock, get_ident
from itertools import count

from .plain_json import decoded
from .tool_errors import failure, from_answer
from .wire import CHUNK_BYTES_MAX, chunks, frame

ARGUMENTS_BYTES_MAX = 16 * 1024 * 1024

_CANCELLED = "tool_cancelled"


class Call:
    """A call that the main thread waits for."""

    __slots__ = ("number", "turn", "tool", "head", "begun", "finished", "parts", "ok", "error", "done")

    # Whether the main thread waits for this call. Calls of other threads end at an interrupt.
    is_mains = True

    def __init__(self, number, turn, tool):
        self.number = number
        self.turn = turn
        self.tool = tool
        # Of a call in several frames: the start of their header, and the notes of `Wire.send_noted`
        # about the first and the last frame.
        self.head = None
        self.begun = []
        self.finished = []
        self.parts = []
        self.ok = False
        # Why the worker ended the call; None if the result tells.
        self.error = None
        # Not empty when the call is over.
        self.done = []

    def wake(self, _calls):
        """Mark the call as over. Called by the thread that holds the right to read."""
        self.done.append(True)

    def abandon(self):
        """The turn is over. Nothing in the main thread can wait any more."""

    def value(self):
        """The tool's result; raises the tool's error."""
        if self.error is not None:
            raise failure(self.error, self.tool, _CANCELLED)
        parts = self.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            value = decoded(body) if body else None
        except ValueError as error:
            message = "the result of the tool is not JSON: %s" % error
            raise failure(message, self.tool, "bad_request") from None
        if self.ok:
            return value
        raise from_answer(value, self.tool)


class ThreadCall(Call):
    """A call that another thread waits for."""

    __slots__ = ("gate",)
    is_mains = False

    def __init__(self, number, turn, tool):
        super().__init__(number, turn, tool)
        self.gate = allocate_lock()
        self.gate.acquire()

    def wake(self, calls):
        self.done.append(True)
        calls.open_gate(self)


class Calls:
    def __init__(self, wire, inbox, turns):
        self.wire = wire
        self.inbox = inbox
        self.turns = turns
        self.open = {}
        # Event loops with open calls (`loop_calls`).
        self.loops = {}
        self.next_number = count(1).__next__
        # Threads that are within a call.
        self._callers = set()
        # Calls whose threads wait at their gates, by call number.
        self._waiting = {}
        # The call of the reader thread.
        self._reader = None
        # The call whose thread was chosen as the next reader and has not started to read.
        self._chosen = None
        self._poll = None

    def call(self, header, tool, body):
        """Call a tool and wait for its result, in any thread.

        `header` is the start of the frame's header, with placeholders for the turn and the number.
        """
        thread = get_ident()
        if thread != self.turns.main:
            return self._call_in_thread(thread, header, tool, body)
        turn = self.turn_of_main(tool)
        call = Call(self.next_number(), turn, tool)
        try:
            self.open[call.number] = call
            self.send(call, header, body)
            self.inbox.wait_for(call.done)
        except BaseException:
            self.give_up(call)
            raise
        return call.value()

    def start(self, loop, header, tool, body):
        """Call a tool from a running event loop; the result is a future."""
        from .loop_calls import start

        # Skip the import next time.
        self.start = lambda *call: start(self, *call)
        return start(self, loop, header, tool, body)

    def turn_of_main(self, tool):
        """The turn of a call in the main thread."""
        turns = self.turns
        if turns.current is None or turns.forked:
            raise self._refusal(tool)
        if self.inbox.is_busy():
            raise self._no_finalizer(tool)
        return turns.current

    def new(self, make, thread, tool):
        """A new open call of a thread other than the main thread."""
        inbox, turns = self.inbox, self.turns
        if inbox.is_at_work():
            raise self._no_finalizer(tool)
        inbox.shared = True
        turn = turns.of(thread)
        call = make(self.next_number(), turn, tool)
        with inbox.lock:
            is_over = turns.forked or turn != turns.current or turn == inbox.interrupted
            if not is_over:
                self.open[call.number] = call
        if is_over:
            raise self._refusal(tool, turn)
        return call

    def send(self, call, header, body):
        head = header % (call.turn, call.number)
        if len(body) <= CHUNK_BYTES_MAX:
            self.wire.send(frame(head + b"}", body))
            return
        # Send the parts one by one: frames of other threads, and a `tool_cancel`, need not wait for
        # the last.
        call.head = head
        first, *others, last = chunks(memoryview(body))
        self.wire.send_noted(frame(head + b',"more":true}', first), call.begun)
        for part in others:
            if call.done:
                break
            self.wire.send(frame(head + b',"more":true}', part))
        if not call.done:
            self.wire.send_noted(frame(head + b"}", last), call.finished)
        elif call.error is None:
            self._cut_short(call)

    def _cut_short(self, call):
        """Finish the frames of a call that is over, so that the keeper does not hold memory for the
        rest. An interrupt may have come before the first frame, or before the last: a frame too many
        would be another call, with empty arguments."""
        wire = self.wire
        if call.head is not None and wire.has_taken(call.begun) and not wire.has_taken(call.finished):
            wire.send_noted(frame(call.head + b"}"), call.finished)

    def give_up(self, call):
        """The code no longer waits: cancel the call, unless it is over already."""
        if self.open.pop(call.number, None) is not None:
            self.say_cancelled(call)

    def deliver(self, header, body):
        """A frame of a result has arrived. Called by the thread that holds the right to read."""
        number = header.get("call")
        call = self.open.get(number)
        if call is None or header.get("turn") != call.turn:
            return
        if header.get("ok"):
            call.parts.append(body)
            if header.get("more"):
                return
            call.ok = True
        else:
            call.parts[:] = (body,)
        if self.open.pop(number, None) is not None:
            call.wake(self)

    def interrupt(self):
        """The turn was interrupted: end the calls of other threads, since the main thread may wait
        for those threads."""
        if self.inbox.shared:
            with self.inbox.lock:
                self._end_elsewhere("the turn was interrupted")

    def end_turn(self):
        """End all calls of the turn, which is no longer the current one."""
        if self.inbox.shared:
            with self.inbox.lock:
                self._end_elsewhere("the turn of the call is over")
        while self.open:
            _, call = self.open.popitem()
            call.abandon()

    def enter_child(self):
        """After a fork: only this thread exists, and the socket belongs to the parent."""
        self.open.clear()
        self.loops.clear()
        self._callers.clear()
        self._waiting.clear()
        self._reader = self._chosen = self._poll = None

    def _end_elsewhere(self, why):
        """End all calls outside of the main thread. The caller holds the lock."""
        for call in list(self.open.values()):
            if not call.is_mains:
                call.error = why
                if self.open.pop(call.number, None) is not None:
                    call.wake(self)

    def _refusal(self, tool, turn=None):
        turns = self.turns
        if turns.forked:
            return failure("a forked process cannot call tools", tool, "bad_request")
        if turns.current is None:
            return failure("a tool cannot be called while no turn runs", tool, _CANCELLED)
        if turn == turns.current:
            return failure("the turn was interrupted", tool, _CANCELLED)
        return failure("the turn of this thread is over", tool, _CANCELLED)

    def _no_finalizer(self, tool):
        message = "a finalizer cannot wait for a tool within another call"
        return failure(message, tool, "bad_request")

    def say_cancelled(self, call):
        """Report that the code no longer waits for the call. After its turn this is known already.
        """
        if self.turns.current == call.turn:
            said = b'{"kind":"tool_cancel","turn":%d,"call":%d}' % (call.turn, call.number)
            self.wire.send(frame(said))
            self._cut_short(call)

    # Threads.

    def _call_in_thread(self, thread, header, tool, body):
        if thread in self._callers:
            # This thread may be the reader, or may be sending: it would wait for itself.
            raise self._no_finalizer(tool)
        self._callers.add(thread)
        try:
            call = self.new(ThreadCall, thread, tool)
            try:
                self.send(call, header, body)
                self._wait(call)
            except BaseException:
                self.give_up(call)
                raise
        finally:
            self._callers.discard(thread)
        if call.error is not None:
            self.say_cancelled(call)
        return call.value()

    def _wait(self, call):
        lock = self.inbox.lock
        try:
            while not call.done:
                with lock:
                    self._accept(call)
                    if call.done:
                        return
                    reads = self._reader is None and not self.inbox.reading
                    if reads:
                        self._reader = call
                    else:
                        self._waiting[call.number] = call
                if reads:
                    self._read_for_all(call)
                else:
                    call.gate.acquire()
        finally:
            # This thread may have been chosen as the next reader in this moment.
            with lock:
                self._accept(call)
                self._choose_reader()

    def _read_for_all(self, call):
        try:
            if self._poll is None:
                from .polling import Poll

                self._poll = Poll(self.wire.fd)
            while not call.done:
                self._poll.wait()
                if not self.inbox.take_in_elsewhere():
                    # The main thread reads. When it stops, it chooses a new reader.
                    return
        finally:
            self._reader = None

    def find_reader(self):
        """The main thread has stopped reading: choose a reader if threads wait."""
        with self.inbox.lock:
            self._choose_reader()

    def _choose_reader(self):
        """If no thread reads, choose one and open its gate. The caller holds the lock."""
        if not self._waiting or self.inbox.reading:
            return
        if self._reader is None and self._chosen is None:
            _, self._chosen = self._waiting.popitem()
            self._chosen.gate.release()

    def _accept(self, call):
        if self._chosen is call:
            self._chosen = None

    def open_gate(self, call):
        """The call is over: let its thread continue. The caller holds the lock."""
        if self._waiting.pop(call.number, None) is not None:
            call.gate.release()
        elif self._reader is call and self._poll is not None:
            self._poll.wake()
