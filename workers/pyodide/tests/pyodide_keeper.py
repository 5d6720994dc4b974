"""The keeper of the native worker's tests, with a Pyodide worker.

Owns the command line, and one memory snapshot for all tests. `WORKER_NODE` and `WORKER_PYODIDE` name
the program of Node.js and the directory of the npm package; without them the tests are skipped.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
WORKER = os.path.dirname(HERE)
sys.path.insert(0, os.path.join(os.path.dirname(WORKER), "python", "tests"))

import host  # noqa: E402
import keeper  # noqa: E402

# A plain start takes 5 s on an idle machine, and several times that on a busy one.
keeper.DEADLINE_S = 60.0
NODE = os.environ.get("WORKER_NODE") or shutil.which("node") or ""
PYODIDE = os.environ.get("WORKER_PYODIDE", "")
# Less than the stack of the process (8 MiB by default). Deep recursion needs it.
STACK_KB = int(os.environ.get("WORKER_STACK_KB", "6500"))
_made = []


def missing():
    """Why the tests cannot run here; empty if they can."""
    if not os.path.isfile(os.path.join(PYODIDE, "pyodide.asm.wasm")):
        return "WORKER_PYODIDE does not name the directory of the npm package pyodide"
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True).stdout if NODE else ""
    if not version.startswith("v") or int(version[1:].split(".")[0]) < 24:
        return "WORKER_NODE does not name Node.js 24 or newer"
    return ""


def scratch():
    """A directory that is removed at the end."""
    directory = tempfile.mkdtemp(prefix="windlass-pyodide-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def snapshot():
    """The snapshot that the tests share."""
    if not _made:
        file = os.path.join(scratch(), "memory")
        make_snapshot(file)
        _made.append(file)
    return _made[0]


def make_snapshot(file):
    command = [NODE, os.path.join(WORKER, "worker.mjs"), "--package", PYODIDE, "--make-snapshot", file]
    subprocess.run(command, check=True, timeout=120)


def command(directory, *arguments, files="workspace", read=()):
    """The command line, as a node builds it."""
    readable = [PYODIDE, WORKER, os.path.join(os.path.dirname(WORKER), "js-kit"),
                os.path.join(os.path.dirname(WORKER), "python"), *read]
    flags = ["--disallow-code-generation-from-strings", "--permission", "--allow-worker",
             "--disable-warning=SecurityWarning", "--stack-size=%d" % STACK_KB]
    if files == "workspace":
        readable.append(directory)
        flags.append("--allow-fs-write=%s/*" % directory)
    flags += ["--allow-fs-read=%s/*" % path if os.path.isdir(path) else "--allow-fs-read=%s" % path
              for path in readable]
    return [NODE, *flags, os.path.join(WORKER, "worker.mjs"), "--package", PYODIDE, *arguments]


class PyodideKeeper(keeper.Keeper):
    def __init__(self, *arguments, files="workspace", environment=None, cwd=None, read=(), plain=False):
        self.directory = cwd or scratch()
        read = list(read)
        if not plain:
            arguments = ("--snapshot", snapshot(), *arguments)
            read.append(snapshot())
        super().__init__(
            cwd=self.directory,
            command=command(self.directory, *arguments, files=files, read=read),
            environment={"WINDLASS_FILES": files, **(environment or {})},
        )


class WithWorker(unittest.TestCase):
    """A test with its own worker, and the tools `echo`, `wait` (never answers) and `fail`."""

    @classmethod
    def setUpClass(cls):
        why = missing()
        if why:
            print("skipped: " + why)
            raise unittest.SkipTest(why)

    def setUp(self):
        self.begin()

    def begin(self, *arguments, **options):
        self.keeper = PyodideKeeper(*arguments, **options)
        self.addCleanup(self.keeper.close)
        self.host = host.Host(self.keeper)
        self.host.offer("echo", lambda value=None: value, properties={"value": {}})
        self.host.offer("wait", lambda **_: host.LATER, properties={"value": {}})
        self.host.offer("fail", self._fail)
        self.run_code = self.host.run

    def _fail(self, message="it broke", **fields):
        raise host.Fail(message, **fields)

    def check(self, code, shown, *answers):
        """Run the code, and check the value of its last expression."""
        told = self.run_code(code, *answers)
        self.assertEqual((told.result, told.traceback), (shown + "\n" if shown else "", ""), code)
        return told
