"""The start of the worker inside Pyodide.

Owns the order: what the memory snapshot holds (`prepare`), and what each process does (`serve`).
"""

import builtins
import importlib
import json
import os
import random
import sys
import time

from .. import awaiting, main
from ..hooks import like
from ..plain_json import encoded
from ..wire import frame

from . import host_calls, lockdown, loop, named_errors
from .device import Device
from .wire import DeviceWire

# Modules that the native worker imports at their first use. In a snapshot they cost nothing.
_LATER = (
    "asyncio", "ast", "ctypes", "getpass", "inspect", "json", "linecache", "traceback", "windlass_worker.calls",
    "windlass_worker.catalogue", "windlass_worker.errors", "windlass_worker.loop_calls",
)

# The part of the WebAssembly stack that code may use. JavaScript's stack holds about twelve times as
# much with the `--stack-size` that README.md names.
_STACK_BYTES = 512 * 1024


class PyodideWorker(main.Worker):
    def start(self, device, startup):
        self._startup = startup
        self._wire.attach_device(device)
        self._say_ready()
        self._take_turns()

    def _say_ready(self):
        worker = "pyodide %s, python %d.%d.%d" % (self._startup["pyodide"], *sys.version_info[:3])
        if self._startup["note"]:
            worker += " (%s)" % self._startup["note"]
        ready = {
            "kind": "worker_ready",
            "protocol": main.PROTOCOL,
            "worker": worker,
            "capabilities": ["stdin", "interrupt", "display", "tools"],
            "startup": self._startup["figures"],
        }
        self._wire.send(frame(encoded(ready)))

    def _take_turn(self, turn, body, context=None):
        loop.leave(awaiting.current())
        super()._take_turn(turn, body, context)

    def _finish(self):
        loop.leave(awaiting.current())
        super()._finish()

    @property
    def catalogue(self):
        return self._tools.opened()


def prepare():
    """Import everything that a session needs. No descriptor may be open after it."""
    for name in _LATER:
        importlib.import_module(name)


def serve(text):
    """Run the session to its end. `text` is JSON, see worker.mjs."""
    startup = json.loads(text)
    device = Device()
    main.Wire = DeviceWire
    worker = PyodideWorker()
    worker.prepare()
    loop.install(device)
    time.sleep = like(time.sleep, _make_sleep(device))
    named_errors.install()
    stand_ins = host_calls.install(lambda: worker.catalogue.calls)
    _enter_session(startup)
    _limit_recursion(startup["stack_top"])
    lockdown.close_javascript()
    sys.modules.update(stand_ins)
    worker.start(device, startup)


def _limit_recursion(stack_top):
    """Let deep recursion in C code raise RecursionError before JavaScript's own stack, which the
    interpreter does not know, is used up. That would end the session."""
    import ctypes

    try:
        protect = ctypes.pythonapi.PyUnstable_ThreadState_SetStackProtection
    except AttributeError:
        return
    state = ctypes.pythonapi.PyThreadState_Get
    state.restype = ctypes.c_void_p
    protect.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    protect(state(), stack_top - _STACK_BYTES, _STACK_BYTES)


def _make_sleep(device):
    def sleep(seconds, /):
        if isinstance(seconds, str):
            raise TypeError("'str' object cannot be interpreted as an integer")
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        device.sleep(float(seconds))

    return sleep


def _enter_session(startup):
    # All sessions of one snapshot would otherwise draw the same numbers.
    random.seed()
    os.environ.clear()
    os.environ.update(startup["environment"])
    os.environ.setdefault("PAGER", "cat")
    os.chdir(startup["directory"])
    sys.path[:] = [path for path in sys.path if path] + startup["paths"] + [startup["directory"]]
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    builtins.__dict__.pop("_", None)
