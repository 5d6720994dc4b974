"""A separate node for each test: the real program in its own directories (with short paths for the
sockets). Everything it started is ended. WINDLASS_BIN names the program."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any, Callable, Iterator, Optional, TypeVar

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from windlass import Windlass, WindlassError  # noqa: E402
from windlass import _calls as calls  # noqa: E402

#: How long anything may take that a test waits for, in seconds.
PATIENCE = 60.0

#: How long one test may take, in seconds.
TEST_WAIT = 120.0

T = TypeVar("T")


def program() -> str:
    named = os.environ.get("WINDLASS_BIN")
    if not named:
        raise RuntimeError("set WINDLASS_BIN to the windlass program that is to be tested")
    return os.path.abspath(named)


def python() -> str:
    """The interpreter of the tests' sessions: a real one, not a shim on PATH."""
    return os.environ.get("WINDLASS_TEST_PYTHON", "/usr/bin/python3")


class NodeCase(unittest.TestCase):
    """Tests with their own directories. The first client that needs a node starts it."""

    base: str
    _environment: contextlib.ExitStack

    @classmethod
    def setUpClass(cls) -> None:
        cls.base = tempfile.mkdtemp(prefix="wl-", dir="/tmp")
        cls._before = dict(os.environ)
        os.environ["WINDLASS_RUNTIME_DIR"] = f"{cls.base}/r"
        os.environ["WINDLASS_STATE_DIR"] = f"{cls.base}/s"
        os.environ["WINDLASS_BIN"] = program()
        for name in ("WINDLASS_URL", "WINDLASS_TOKEN", "WINDLASS_CA"):
            os.environ.pop(name, None)

    @classmethod
    def tearDownClass(cls) -> None:
        try:
            stop_node()
        finally:
            os.environ.clear()
            os.environ.update(cls._before)
            shutil.rmtree(cls.base, ignore_errors=True)

    def setUp(self) -> None:
        # A test that hangs prints its stack and ends the run.
        faulthandler.dump_traceback_later(TEST_WAIT, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)

    def client(self, **options: Any) -> Windlass:
        client = Windlass(**options)
        self.addCleanup(client.close)
        return client

    def session(self, client: Optional[Windlass] = None, **options: Any) -> Any:
        session = (client or self.client()).session(interpreter=python(), **options)
        self.addCleanup(_close_quietly, session)
        return session

    def gate(self, name: str) -> Gate:
        return Gate(f"{self.base}/{name}")


class Gate:
    """A named pipe that a test opens when code may continue. The code must be allowed to read the
    directory: use `policy={"writable": [base]}`."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.mkfifo(path)

    @property
    def wait(self) -> str:
        """Python code that waits for the gate."""
        return f"open({self.path!r}).read()"

    def open(self) -> None:
        with open(self.path, "w"):
            pass


def _close_quietly(session: Any) -> None:
    with contextlib.suppress(WindlassError, RuntimeError):
        session.close(grace=0)


def kill_node() -> int:
    """Kills the test's node as a crash would, and waits until it is gone. A stream may still hold
    events of a node that was killed before: then the next node is started first, as the stream
    would do."""
    with Windlass() as client:
        pid = client.status()["pid"]
    handle = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        until_readable(handle)
    finally:
        os.close(handle)
    return pid


def stop_node() -> None:
    """Stops the node with its sessions, and waits until it is gone."""
    try:
        client = Windlass(start=False)
    except WindlassError as error:
        if error.code == "unreachable":
            return
        raise
    with client:
        handle = os.pidfd_open(client.status()["pid"])
        try:
            client._transport.perform(calls.stop_node("end"))
            until_readable(handle)
        finally:
            os.close(handle)


def until_readable(descriptor: int) -> None:
    import select

    ready, _, _ = select.select([descriptor], [], [], PATIENCE)
    if not ready:
        raise TimeoutError("the process is still there")


def in_thread(act: Callable[[], T]) -> Callable[[], T]:
    """Starts `act`; returns a function that waits for its result."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append((True, act()))
        except BaseException as error:
            results.append((False, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> T:
        thread.join(PATIENCE)
        if not results:
            raise TimeoutError("the thread has not ended")
        ok, value = results[0]
        if not ok:
            raise value
        return value  # type: ignore[no-any-return]

    return result


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails when its block takes longer."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    if took > seconds:
        raise AssertionError(f"it took {took:.2f} s, more than {seconds} s")


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Another process with this package."""
    source = str(Path(__file__).parent.parent / "src")
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": source, **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
