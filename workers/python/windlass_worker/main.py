"""The worker's life: report that it is ready, run turns, exit.

Owns the order of steps in a turn. Runs the session's code only inside `Inbox.guard`.
"""

import builtins
import os
import sys
from os import _exit
from time import perf_counter

from . import awaiting
from .cell import Cells
from .display import Display
from .hooks import Hooks
from .inbox import Inbox
from .output import Output
from .signals import Signals
from .stdin import Input
from .tools import Source
from .turns import Turns
from .wire import Wire, frame, quoted, scan

PROTOCOL = 1
CAPABILITIES = b'["stdin","interrupt","display","background_output","tools","fork","context"]'

# The socket is moved to a high descriptor, since some code expects the numbers from 3 to be free.
_HIGH_DESCRIPTORS = (900, 200, 50)
# The backend module; it may hold figures once it is imported.
_BACKEND = __package__ + ".mpl"

# The variable that names the span of a turn to its code.
_TRACE = "TRACEPARENT"

_OK = b'"ok"'
_CLEAN_EXIT = b',"exit_code":0'
# As shells say that SIGINT has ended a program.
_INTERRUPTED_STATUS = 130
_INTERRUPTED = b'"interrupted"'
_ERROR = b'"error","error":{"name":%b,"message":%b}'


# When this process began to load the worker.
_BEGAN = perf_counter()


def main():
    worker = Worker()
    worker.prepare()
    worker.serve(int(os.environ.pop("WINDLASS_FD")))


class Worker:
    def __init__(self):
        self._wire = Wire()
        self._inbox = Inbox(self._wire)
        self._turns = Turns()
        self._input = Input(self._wire, self._inbox, self._turns)
        self._display = Display(self._wire, self._turns)
        self._output = Output(self._wire, self._turns, self._display.show_rich)
        self._cells = Cells()
        self._tools = Source(self._wire, self._inbox, self._turns)
        self._figures = None
        # Whether a turn has set the variable of its span, and what it was before.
        self._is_traced, self._untraced = False, None

    def prepare(self):
        """Set up the environment that a session's code expects."""
        sys.argv = [""]
        os.environ.setdefault("PAGER", "cat")
        self._output.install()
        self._input.install()
        self._turns.watch_threads()
        builtins.display = self._display.display
        builtins.tools = self._tools.tools
        Hooks(
            {
                "linecache": self._cells.quote_in,
                "inspect": self._tools.sign,
                "getpass": self._input.install_getpass,
                "concurrent.futures.thread": self._turns.watch_executors,
                "matplotlib": self._choose_backend,
                _BACKEND: self._display.serve_backend,
            }
        ).install()
        self._inbox.prepare()
        Signals(self._inbox).install()

    def rehearse(self):
        """Run the steps of a turn once, so that modules are loaded and pages are written before the
        first turn."""
        import fcntl  # noqa: F401

        self._cells.rehearse()
        frame(b'{"kind":"output","turn":%d,"text":%b}' % (1, quoted("2\n")))
        scan('{"kind":"turn_start","turn":1}', 0)
        # The socket is not attached, so this sends nothing.
        self._take_turn(0, b"None")
        self._cells.forget(0)

    def note_packages(self, count, began, imported):
        """A zygote has imported packages ahead. A forked worker reports what its zygote measured."""
        self._figures = b'{"runtime_load_ms":%d,"package_load_ms":%d,"package_count":%d}' % (
            (began - _BEGAN) * 1000,
            (imported - began) * 1000,
            count,
        )

    def serve(self, fd):
        """Attach to the keeper's socket, report that the worker is ready, and run turns until
        shutdown."""
        self._wire.attach(_out_of_the_way(fd))
        os.register_at_fork(after_in_child=self._enter_child)
        scratch = os.environ.pop("WINDLASS_SCRATCH", None)
        if scratch is not None:
            from .scratch import enter

            enter(scratch)
        self._say_ready()
        self._take_turns()

    def _say_ready(self):
        figures = self._figures or b'{"runtime_load_ms":%d}' % ((perf_counter() - _BEGAN) * 1000)
        version = "python %d.%d.%d" % sys.version_info[:3]
        self._wire.send(
            frame(
                b'{"kind":"worker_ready","protocol":%d,"worker":%b,"capabilities":%b,'
                b'"startup":%b}' % (PROTOCOL, quoted(version), CAPABILITIES, figures)
            )
        )

    def _take_turns(self):
        parts, context = [], None
        while True:
            header, body = self._inbox.take()
            kind = header.get("kind")
            if kind == "turn_start":
                if not parts:
                    context = header.get("context")
                parts.append(body)
                if not header.get("more"):
                    body = b"".join(parts)
                    parts.clear()
                    self._take_turn(header["turn"], body, context)
            elif kind == "fork":
                self._fork(header.get("session"), body)
            elif kind == "shutdown":
                self._wire.send(frame(b'{"kind":"session_end","reason":"shutdown"}'))
                return
            # Any other message is unknown, or late for a turn that is over.

    def _fork(self, session, order):
        """Make a twin: a copy of this process that continues as the worker of another session."""
        from .twin import fork

        fd = fork(self._wire, self._inbox, order)
        if fd is not None:
            self._wire.adopt(fd)
            self._inbox.adopt()
            self._turns.adopt()
            self._cells.rename(session)
            self._say_ready()

    def _take_turn(self, turn, body, context=None):
        inbox, cells = self._inbox, self._cells
        inbox.install()
        self._turns.begin(turn)
        cells.value = around = None
        trace = None if context is None else _trace_alone(context)
        if trace is not None:
            error = inbox.guard(turn, self._run_traced, turn, body, trace)
        elif context is None:
            error = inbox.guard(turn, self._run, turn, body)
        else:
            around = self._surroundings(context)
            error = inbox.guard(turn, self._run_within, turn, body, around)
        if self._turns.forked:
            _leave_child(error, around)
        if around is not None and around.is_program:
            error = self._end_program(turn, around, error)
        if awaiting.has_loop() or _BACKEND in sys.modules:
            late = inbox.guard(turn, self._finish)
            error = late if error is None else error
        if around is not None:
            around.leave()
        if error is None:
            value = cells.value
            ending = _OK + _CLEAN_EXIT
            if value is not None:
                ending = b'%b,"value":%b' % (ending, value)
        elif type(error) is _Described:
            ending = error.ending
        else:
            if issubclass(type(error), SystemExit):
                inbox.guard(turn, _show_exit_message, error)
            ending = self._ending(turn, error)
        self._input.reset()
        self._turns.end()
        if self._tools.catalogue is not None:
            self._tools.end_turn()
        self._wire.send(frame(b'{"kind":"idle","turn":%d,"outcome":%b}' % (turn, ending)))

    def _run(self, turn, body):
        self._inbox.check(turn)
        if self._is_traced:
            self._end_trace()
        self._cells.run(turn, body)

    def _run_traced(self, turn, body, trace):
        """Run a turn whose context has nothing but the name of its span: every turn of a node that
        records spans, so this does as little as it can. The variable stays until a turn has
        another context, for threads that go on after their turn.
        """
        self._inbox.check(turn)
        try:
            variables = os.environ
            if not self._is_traced:
                self._untraced, self._is_traced = variables.get(_TRACE), True
            variables[_TRACE] = trace
        except Exception:
            # The code has replaced `os.environ`, and has not asked for the variable.
            pass
        self._cells.run(turn, body)

    def _end_trace(self):
        try:
            if self._untraced is None:
                os.environ.pop(_TRACE, None)
            else:
                os.environ[_TRACE] = self._untraced
        except Exception:
            # The code has replaced `os.environ`.
            pass
        # Last: if an interrupt ends this before, the next turn does it again.
        self._is_traced = False

    def _surroundings(self, context):
        from .surroundings import Surroundings

        return Surroundings(context, self._cells.namespace)

    def _run_within(self, turn, body, around):
        self._inbox.check(turn)
        if self._is_traced:
            self._end_trace()
        around.enter()
        if around.is_program:
            self._cells.run_program(body, around.name)
        else:
            self._cells.run(turn, body, around.name)

    def _end_program(self, turn, around, error):
        """What the interpreter does after the last line of a program: it shows the error, waits for
        threads, and runs the functions of `atexit`."""
        if error is not None:
            if issubclass(type(error), SystemExit):
                self._inbox.guard(turn, _show_exit_message, error)
            error = _Described(self._ending(turn, error, True))
            self._wire.flush_held()
        if self._inbox.interrupted != turn:
            late = self._inbox.guard(turn, around.wait_for_threads)
            error = late if error is None else error
        late = self._inbox.guard(turn, around.run_exit_functions)
        return late if error is None else error

    def _finish(self):
        """End the tasks and show the figures that the turn left, while it can still be interrupted.
        """
        if awaiting.has_loop():
            awaiting.cancel_tasks()
        if _BACKEND in sys.modules:
            sys.modules[_BACKEND].show_leftovers()

    def _ending(self, turn, error, of_program=False):
        """The outcome of the turn as JSON. The error's methods belong to the session's code and may
        fail."""
        words = []
        late = self._inbox.guard(turn, self._describe, turn, error, words, of_program)
        if late is not None and of_program and issubclass(type(late), SystemExit):
            # The program's `sys.excepthook` decided the exit status.
            self._inbox.guard(turn, _show_exit_message, late)
            words.clear()
            self._inbox.guard(turn, self._describe, turn, late, words)
        if words:
            return words[0]
        if self._was_interrupted(turn, error):
            return _INTERRUPTED + b',"exit_code":%d' % _INTERRUPTED_STATUS
        return _ERROR % (quoted(type(error).__name__), b'""') + b',"exit_code":1'

    def _exit_status(self, turn, error):
        """The exit status of a program that this error ends."""
        if issubclass(type(error), SystemExit):
            code = error.code
            if code is None or type(code) in (int, bool):
                return int(code or 0) & 0xFF
        return _INTERRUPTED_STATUS if self._was_interrupted(turn, error) else 1

    def _describe(self, turn, error, words, of_program=False):
        from . import errors

        leaving = issubclass(type(error), SystemExit)
        words.append(self._outcome(turn, error, errors))
        if not leaving:
            errors.remember(error)
            if of_program:
                is_shown = errors.show_by_hook(error)
                # An interrupt may have ended the hook.
                words[0] = self._outcome(turn, error, errors)
                if is_shown:
                    return
            self._output.say(b"traceback", errors.traceback_text(error))

    def _outcome(self, turn, error, errors):
        leaving = issubclass(type(error), SystemExit)
        if self._was_interrupted(turn, error):
            outcome = _INTERRUPTED
        elif leaving and (error.code is None or error.code == 0):
            outcome = _OK
        else:
            message = str(error.code) if leaving else errors.message_of(error)
            outcome = _ERROR % (quoted(errors.name_of(error)), quoted(message))
        return outcome + b',"exit_code":%d' % self._exit_status(turn, error)

    def _was_interrupted(self, turn, error):
        """Code may convert an interrupt into another error; the turn was interrupted all the same.
        """
        return issubclass(type(error), KeyboardInterrupt) or self._inbox.interrupted == turn

    def _enter_child(self):
        """After a fork: the protocol belongs to the parent."""
        self._wire.close()
        self._turns.enter_child()
        self._inbox.uninstall()
        self._tools.enter_child()
        awaiting.leave_loop()

    def _choose_backend(self, matplotlib):
        """`matplotlib` was imported: show figures, unless another backend was asked for."""
        automatic = matplotlib.rcsetup._auto_backend_sentinel
        if dict.__getitem__(matplotlib.rcParams, "backend") is automatic:
            matplotlib.rcParams["backend"] = "module://" + _BACKEND


def _out_of_the_way(given):
    """Move the keeper's socket to a high descriptor that no other program inherits."""
    from fcntl import F_DUPFD_CLOEXEC, fcntl

    os.set_inheritable(given, False)
    for lowest in _HIGH_DESCRIPTORS:
        try:
            moved = fcntl(given, F_DUPFD_CLOEXEC, lowest)
        except OSError:
            continue
        os.close(given)
        return moved
    return given


def _trace_alone(context):
    """The name of the turn's span, if its context has nothing else."""
    variables = context.get("env")
    if variables and len(context) == len(variables) == 1:
        return variables.get(_TRACE)
    return None


class _Described(Exception):
    """The error of a program that has been shown. `ending` is the outcome of the turn as JSON."""

    def __init__(self, ending):
        self.ending = ending


def _show_exit_message(error):
    """Print the message of `sys.exit("message")`, as the interpreter does."""
    code = error.code
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)


def _leave_child(error, around=None):
    """A forked child reached the end of the cell: it exits here, as a program would."""
    status = 0
    try:
        if isinstance(error, SystemExit):
            if isinstance(error.code, int):
                status = error.code & 0xFF
            elif error.code is not None:
                status = 1
                print(error.code, file=sys.stderr)
        elif error is not None:
            from . import errors

            status = 1
            if around is None or not around.is_program or not errors.show_by_hook(error):
                sys.stderr.write(errors.traceback_text(error))
        if around is not None and around.is_program:
            around.run_exit_functions()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        _exit(status)
