"""Code that tries to reach JavaScript, Node.js or the machine from Python."""

import os
import unittest

from pyodide_keeper import WithWorker

# Each must fail, or give the shown value. The session may be lost only where it says so.
IMPORTS = (
    "from js import process",
    "import js",
    "import pyodide_js",
    "from pyodide.code import run_js",
    "from pyodide.ffi import to_js",
    "import pyodide.ffi",
    "import _pyodide_core",
    "from _pyodide import _base",
    "import pyodide.webloop",
    "import importlib; importlib.import_module('js')",
    "__import__('pyodide_js')",
    "import sys; sys.meta_path.pop(0); import js",
    "import importlib; importlib.import_module('_pyodide_core').to_js",
)

HUNTS = (
    # The interpreter's own copy of the core module.
    ("""import _imp
class Spec: name = '_pyodide_core'; origin = 'built-in'
[n for n in dir(_imp.create_builtin(Spec)) if n[:2] != '__']""", "[]"),
    # Objects that the garbage collector knows.
    ("""import gc
[o for o in gc.get_objects() if type(o).__name__ == 'builtin_function_or_method' and 'pyodide' in str(o.__module__)]""",
     "[]"),
    ("""import gc
[vars(o) for o in gc.get_objects() if type(o).__name__ in ('JsFinder', 'JsLoader', 'WebLoop', 'WebLoopPolicy') and vars(o)]""",
     "[]"),
    # Instances of the types that wrap JavaScript objects.
    ("""def below(c):
    yield c
    for s in type.__subclasses__(c): yield from below(s)
wrappers = {c for t in object.__subclasses__() if t.__name__ == 'JsProxy' for c in below(t)}
import gc
held = [o for o in gc.get_objects() if type(o) in wrappers]
held += [v for o in gc.get_objects() if isinstance(o, (dict, list, tuple))
         for v in (o.values() if isinstance(o, dict) else o) if type(v) in wrappers]
held""", "[]"),
    # Functions of the removed packages still have empty namespaces.
    ("""import gc, types
[f for f in gc.get_objects() if type(f) is types.FunctionType and f.__module__ and
 f.__module__.split('.')[0] in ('_pyodide', 'pyodide') and 'js' in str(f.__globals__.keys()).lower()]""", "[]"),
    # Files of the machine.
    ("import os; os.path.exists('/etc/passwd'), os.path.exists('/proc/self/environ')", "(False, False)"),
    ("[n for n in os.environ if n not in ('HOME', 'PATH', 'PWD', 'PAGER')]", "[]"),
)

# With the interpreter's memory in hand (ctypes), code can call any function of the WebAssembly module. None of
# them may run JavaScript text. The session may end.
MEMORY = (
    "import ctypes; ctypes.CDLL(None).emscripten_run_script(b'process.exit(42)')",
    "import ctypes; ctypes.CDLL(None).emscripten_run_script_int(b'process.exit(42)')",
    "import ctypes; ctypes.CDLL(None).emscripten_run_script_string(b'process.exit(42)')",
)


class Attacks(WithWorker):
    def test_no_import_reaches_javascript(self):
        for code in IMPORTS:
            told = self.run_code(code)
            self.assertEqual(told.outcome, "error", code)
            self.assertIn(told.error["name"], ("ModuleNotFoundError", "ImportError", "AttributeError"), code)

    def test_no_search_finds_a_javascript_object(self):
        for code, shown in HUNTS:
            told = self.run_code(code)
            self.assertEqual((told.result, told.traceback), (shown + "\n", ""), code)

    def test_sockets_are_refused(self):
        for code in (
            "import socket; socket.create_connection(('127.0.0.1', 80), 1)",
            "import socket; socket.socket().connect(('127.0.0.1', 80))",
            "import _socket; s = _socket.socket(); s.settimeout(1); s.connect(('127.0.0.1', 80))",
            "import asyncio; await asyncio.open_connection('127.0.0.1', 80)",
        ):
            self.assertEqual(self.run_code(code).outcome, "error", code)

    def test_memory_gives_no_javascript(self):
        for code in MEMORY:
            self.begin()
            self.keeper.start(code)
            # The interpreter ends itself, never by the attacker's text.
            self.assertNotEqual(self.keeper.ended(), 42, code)
            self.keeper.close()

    def test_writes_to_the_devices_only_hurt_this_session(self):
        self.assertEqual(self.run_code("open('/dev/windlass-wait', 'wb', buffering=0).write(b'x')").outcome, "error")
        self.check("1 + 1", "2")

    def test_links_and_parents_do_not_leave_the_workspace(self):
        os.symlink("/etc", os.path.join(self.keeper.directory, "out"))
        for code in (
            "open('out/passwd')", "open('../../etc/passwd')", "open('/workspace/../etc/passwd')",
            "import os; os.symlink('/etc/passwd', 'new'); open('new')",
        ):
            told = self.run_code(code)
            self.assertIn(told.error["name"], ("FileNotFoundError", "PermissionError", "OSError"), code)


if __name__ == "__main__":
    unittest.main()
