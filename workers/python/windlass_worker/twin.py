"""Forks a twin: a copy of this process, between turns, that continues as another session's worker.

Owns the order of steps in the fork. Imported with the first fork, or by the zygote.

The twin is forked twice, so that it is not a child of the original: the session's code can neither
wait for it nor learn of its end. Both processes then add a layer to their confinement, which keeps
each from signalling, tracing or writing to the other. A layer that was added before the fork would
be common to both. The twin waits until the original has added its layer. If either of them fails,
the twin exits: twins never run without the separation.

A layer belongs to one thread. The other threads of the original add theirs before the fork, so that
no thread of the original can reach the twin at any moment. The keeper checks all of this from
outside and does not rely on this module.
"""

import os
from errno import E2BIG
from os import _exit

from . import twin_state
from .wire import frame, quoted, scan

_LIBRARY = "libwindlass_confine.so"
# The reason when a layer cannot be added.
_NOT_APART = "it cannot be kept apart from its twin: %s"


class Refused(Exception):
    """No twin was made, with the reason."""

    def __init__(self, reason, limit=False):
        super().__init__(reason)
        self.limit = limit


def fork(wire, inbox, order):
    """Fork. Returns the descriptor of the protocol socket in the twin, and None in the original."""
    try:
        twin, not_carried = inbox.undisturbed(lambda: _make_twin(wire, scan(order.decode(), 0)[0]))
    except Refused as refused:
        _say(wire, b"false", refused.args[0], refused.limit)
        return None
    except Exception as error:
        _say(wire, b"false", "%s: %s" % (type(error).__name__, error), False)
        return None
    if twin is None:
        _say(wire, b"true", "", False, not_carried)
    return twin


def _say(wire, ok, reason, limit, not_carried=b""):
    header = b'{"kind":"forked","ok":%b,"reason":%b,"limit":%b}' % (
        ok,
        quoted(reason),
        b"true" if limit else b"false",
    )
    wire.send(frame(header, not_carried))


def _make_twin(wire, order):
    """Make the twin. Returns its socket's descriptor in the twin, and in the original a list of
    what the twin does not have."""
    wire.send(frame(b'{"kind":"fork_wait"}'))
    ends = wire.receive_descriptors(3)
    if len(ends) != 3:
        raise Refused("the twin's descriptors did not arrive")
    apart = None
    try:
        apart = _Separation(order)
        state = twin_state.State(order["workspace"], order["copy"], (wire.fd, *ends))
        not_carried = state.not_carried()
        if _fork_separated(apart):
            return _take_over(state, ends), b""
    finally:
        if apart is None or not apart.is_twin:
            for end in ends:
                os.close(end)
    return None, not_carried


def _take_over(state, ends):
    try:
        return state.take_over(ends)
    except BaseException:
        # No report is possible here: the keeper finds the socket closed.
        _exit(1)


class _Separation:
    """The confinement layers of the two processes."""

    def __init__(self, order):
        self._original = order.get("original")
        self._twin = order.get("twin")
        # Thread ids, for a process that cannot read its own `/proc`.
        self._threads = order.get("threads", ())
        self.is_twin = False
        if self._original is not None:
            self._call = _library()

    def adopt(self, orphans):
        """Set whether orphaned descendants are adopted by this process or by the process that holds
        it."""
        if self._original is not None:
            self._call("windlass_adopt", orphans)

    def enter_others(self):
        """Add a layer to each other thread. Returns 0 or an errno."""
        rules = self._rules()
        if rules is None:
            return 0
        threads = b"" if self.is_twin else " ".join(map(str, self._threads)).encode()
        return self._call("windlass_separate_others", rules, len(rules), threads, len(threads))

    def enter(self):
        """Add this thread's layer. Returns 0 or an errno."""
        rules = self._rules()
        return 0 if rules is None else self._call("windlass_separate", rules, len(rules))

    def _rules(self):
        rules = self._twin if self.is_twin else self._original
        return None if rules is None else rules.encode()


def _fork_separated(apart):
    """Fork, and separate both processes. Returns True in the twin; raises only in the original."""
    code = apart.enter_others()
    if code:
        raise Refused(_reason(code))
    told, tell = os.pipe()
    wait, go = os.pipe()
    try:
        # The twin must be adopted by the process that holds this one.
        apart.adopt(0)
        between = os.fork()
        if between == 0:
            _fork_again(apart, (told, go))
            # The twin alone comes here.
            _be_twin(apart, tell, wait)
            return True
        os.close(tell)
        tell = None
        os.waitpid(between, 0)
        _be_original(apart, told)
        os.write(go, b"g")
        return False
    finally:
        if not apart.is_twin:
            apart.adopt(1)
            for end in (told, tell, wait, go):
                if end is not None:
                    os.close(end)


def _fork_again(apart, others):
    """Runs in the intermediate process, which exits here."""
    apart.is_twin = True
    try:
        if os.fork() != 0:
            _exit(0)
        for end in others:
            os.close(end)
    except BaseException:
        _exit(1)


def _be_twin(apart, tell, wait):
    try:
        os.setpgid(0, 0)
        # Fork hooks may have started threads.
        code = apart.enter_others() or apart.enter()
        os.write(tell, b"%d" % code)
        os.close(tell)
        if code or os.read(wait, 1) != b"g":
            _exit(1)
        os.close(wait)
        apart.adopt(1)
    except BaseException:
        _exit(1)


def _be_original(apart, told):
    said = os.read(told, 16)
    if not said:
        raise Refused("the twin ended before it was kept apart")
    code = int(said) or apart.enter()
    if code == E2BIG:
        raise Refused("the session was forked as often as possible", limit=True)
    if code:
        raise Refused(_reason(code))


def _reason(code):
    return _NOT_APART % (os.strerror(code) if code > 0 else "its rules are invalid")


def _library():
    """Returns a function that calls the sandbox's library and returns a number."""
    path = os.path.join(os.path.dirname(__file__), _LIBRARY)
    try:
        # Importing `ctypes` takes milliseconds, and nothing of it is needed.
        import _ctypes

        handle = _ctypes.dlopen(path, os.RTLD_NOW)
    except (ImportError, OSError) as error:
        raise Refused(_NOT_APART % error) from None

    def call(name, *arguments):
        return _ctypes.call_function(_ctypes.dlsym(handle, name), arguments)

    return call
