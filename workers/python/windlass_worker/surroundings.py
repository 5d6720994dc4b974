"""The surroundings of one turn: directory, variables, arguments, and the end of a program.

Owns what a turn's context changes in this process, and puts it back after the turn. Owns the steps
after a program's last line: wait for its threads, run its `atexit` functions. Never ends the
process: the session goes on. Imported with the first context of a session.
"""

import atexit
import os
import sys
from atexit import unregister

_chdir, _getcwd = os.chdir, os.getcwd
# What tracebacks call the code of `-c` and of standard input. None: as any other cell.
_SHOWN = {"-c": None, "-": "<stdin>"}
_MISSING = object()


class Surroundings:
    def __init__(self, context, namespace):
        self.is_program = context.get("program") is True
        self._file = context.get("file") or "-c"
        self._args = context.get("args") or []
        self._cwd = context.get("cwd")
        self._env = context.get("env") or {}
        self._namespace = namespace
        self._undo = []
        # The `atexit` functions of the program: (function, arguments, options), or None once unregistered.
        self._at_exit = []
        self._threads = ()

    @property
    def name(self):
        """The file name in tracebacks, or None."""
        return _SHOWN.get(self._file, self._file)

    def enter(self):
        """Apply the context. Raises OSError if the directory cannot be entered."""
        if self._cwd is not None:
            left = _directory()
            _chdir(self._cwd)
            if left is not None:
                self._undo.append(lambda: _chdir(left))
        for name, value in self._env.items():
            before = os.environ.get(name)
            self._undo.append(lambda name=name, before=before: _set_variable(name, before))
            os.environ[name] = value
        self._replace(sys, "argv", [self._file, *self._args])
        if self.is_program:
            self._enter_program()

    def _enter_program(self):
        threading = sys.modules.get("threading")
        if threading is not None:
            self._threads = tuple(threading.enumerate())
        self._end_hooks(threading)
        named = self._namespace.get("__file__", _MISSING)
        self._undo.append(lambda: self._name_file(named))
        self._namespace["__file__"] = self._file
        self._replace(atexit, "register", self._register)
        self._replace(atexit, "unregister", self._unregister)
        path, directory = sys.path, os.path.dirname(self._file)
        before = path[:1]
        path[: before == [""]] = [directory]
        self._undo.append(lambda: _put_back_path(path, directory, before))

    def leave(self):
        """Put everything back, except what the code has changed itself."""
        while self._undo:
            try:
                self._undo.pop()()
            except Exception:
                # The directory is gone, or the code has changed the process in some other way.
                pass

    def wait_for_threads(self):
        """Wait for the program's threads, except daemons, as the interpreter does before it exits."""
        threading = sys.modules.get("threading")
        if threading is None:
            return
        for call in reversed(getattr(threading, "_threading_atexits", ())):
            # Threads of an executor wait for work until they are told that none will come.
            call()
        executors = sys.modules.get("concurrent.futures.thread")
        if executors is not None:
            executors._shutdown = False
        processes = sys.modules.get("concurrent.futures.process")
        if processes is not None:
            processes._global_shutdown = False
        current = threading.current_thread()
        while True:
            alive = [
                thread
                for thread in threading.enumerate()
                if not thread.daemon and thread is not current and thread not in self._threads
            ]
            if not alive:
                return
            for thread in alive:
                thread.join()

    def run_exit_functions(self):
        """Run what the program has registered with `atexit`, the last first."""
        # Functions that are registered meanwhile do not run.
        for at in reversed(range(len(self._at_exit))):
            if self._at_exit[at] is None:
                continue
            function, arguments, options = self._at_exit[at]
            try:
                function(*arguments, **options)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                from . import errors

                title = "Exception ignored in atexit callback: %r\n" % (function,)
                sys.stderr.write(title + errors.traceback_text(error))
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (AttributeError, OSError, ValueError):
                pass

    def _register(self, func, /, *args, **kwargs):
        """Register a function to be executed upon normal program termination."""
        if not callable(func):
            raise TypeError("the first argument must be callable")
        self._at_exit.append((func, args, kwargs))
        return func

    def _unregister(self, func, /):
        """Unregister an exit function that was previously registered."""
        for at, entry in enumerate(self._at_exit):
            if entry is not None and entry[0] == func:
                self._at_exit[at] = None
        unregister(func)

    def _end_hooks(self, threading):
        """The hooks that show errors end with the program that sets them."""
        self._replace(sys, "excepthook", sys.__excepthook__)
        self._replace(sys, "unraisablehook", sys.unraisablehook)
        before = threading and threading.excepthook
        self._undo.append(lambda: _put_back_thread_hook(before))

    def _name_file(self, before):
        if before is _MISSING:
            self._namespace.pop("__file__", None)
        else:
            self._namespace["__file__"] = before

    def _replace(self, owner, name, value):
        before = getattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)


def _directory():
    try:
        return _getcwd()
    except OSError:
        return None


def _set_variable(name, value):
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _put_back_thread_hook(before):
    threading = sys.modules.get("threading")
    if threading is not None:
        threading.excepthook = before or threading.__excepthook__


def _put_back_path(path, directory, before):
    if path[:1] == [directory]:
        path[:1] = before if before == [""] else []
