"""Starts a node, at most one per runtime directory.

Owns the start lock and reads the node's first line. Never kills a node that is ready.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import select
import shutil
import socket
import subprocess
import sysconfig
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Iterator, Optional, Union

from ._dirs import Dirs
from ._errors import StartFailed, WindlassError, failed

#: How long a client waits for another one that is starting the node, in seconds.
LOCK_WAIT = 30.0

#: How long a node may take to say that it is ready, in seconds.
READY_WAIT = 30.0

#: The longest first line of a node.
READY_LINE_BYTES_MAX = 64 * 1024

#: A longer log is renamed when the next node starts. One renamed log is kept.
LOG_BYTES_MAX = 8 * 1024 * 1024

#: Bytes of the log's end that a failure shows.
LOG_TAIL_BYTES = 2048

#: The first and the longest pause between two attempts to connect, and for how long, in seconds.
PAUSE_FIRST = 0.005
PAUSE_MAX = 0.2
RETRY_FOR = 10.0

_FOREGROUND = "run the node in the foreground to see its messages: windlass node --foreground"


def find_program() -> Optional[str]:
    """The `windlass` program: WINDLASS_BIN, the one that came with this package, or the one on
    PATH."""
    named = os.environ.get("WINDLASS_BIN")
    if named:
        return named
    beside = [Path(__file__).parent / "_bin", Path(sysconfig.get_path("scripts"))]
    for directory in beside:
        found = shutil.which("windlass", path=str(directory))
        if found:
            return found
    return shutil.which("windlass")


def ensure_node(dirs: Dirs, program: Optional[str]) -> None:
    """Returns once a node listens. Starts one if needed."""
    with _start_lock(dirs):
        # The previous holder of the lock has probably started the node.
        if _listens(dirs):
            return
        if program is None:
            raise StartFailed(
                "start_failed",
                "no node runs, and the program that starts one, windlass, is not on PATH",
                "install windlass, or set WINDLASS_BIN to where it is",
            )
        try:
            _launch(dirs, program)
        except WindlassError as error:
            # Another node is starting or stopping at this moment: a user may have started it by
            # hand.
            if error.code != "already_running":
                raise
        _await_socket(dirs)


def _await_socket(dirs: Dirs) -> None:
    """Waits until the socket of another client's node accepts connections. Polls, since nothing
    announces it."""
    until, pause = time.monotonic() + RETRY_FOR, PAUSE_FIRST
    while not _listens(dirs) and time.monotonic() + pause < until:
        time.sleep(pause)
        pause = min(pause * 2, PAUSE_MAX)


def _listens(dirs: Dirs) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(dirs.socket)) == 0


@contextmanager
def _start_lock(dirs: Dirs) -> Iterator[None]:
    path = dirs.start_lock
    try:
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _failed(f"cannot lock {path}: {error.strerror}", f"make {path} writable") from None
    taken: queue.SimpleQueue[Optional[OSError]] = queue.SimpleQueue()
    turn = threading.Lock()
    state = {"given_up": False}

    def wait() -> None:
        # Blocks in a separate thread. After an abandoned wait the thread only releases the lock
        # again.
        cause: Optional[OSError] = None
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            cause = error
        with turn:
            if state["given_up"]:
                os.close(file)
            else:
                taken.put(cause)

    threading.Thread(target=wait, name="windlass-start-lock", daemon=True).start()
    try:
        cause = taken.get(timeout=LOCK_WAIT)
    except BaseException as error:
        with turn:
            state["given_up"] = True
            if not taken.empty():
                os.close(file)
        if isinstance(error, queue.Empty):
            raise _failed(
                f"another client has been starting the node for over {LOCK_WAIT:.0f} s",
                f"find the process that holds the lock with: fuser {path}",
            ) from None
        raise
    try:
        if cause is not None:
            raise _failed(f"cannot lock {path}: {cause.strerror}", f"make {path} writable")
        yield
    finally:
        os.close(file)


def _launch(dirs: Dirs, program: str) -> None:
    """Runs `program node` and waits for its first line."""
    child = _spawn(dirs, program)
    assert child.stdout is not None
    try:
        line = _first_line(child.stdout)
        if line is None:
            raise _failed(
                f"the node was not ready within {READY_WAIT:.0f} s; "
                f"the end of {dirs.log}:\n{_tail(dirs.log)}",
                _FOREGROUND,
            )
        said = _first_word(line)
        if "error" in said:
            error = said["error"]
            raise failed(error["code"], error["message"], error["remedy"])
        if not said.get("ready"):
            child.kill()
            status = child.wait()
            raise _failed(
                f"the node ended before it was ready (status {status}); "
                f"the end of {dirs.log}:\n{_tail(dirs.log)}",
                _FOREGROUND,
            )
    except BaseException:
        # Do not leave a node behind that never became ready.
        child.kill()
        child.wait()
        raise
    finally:
        child.stdout.close()
    # A thread reaps the node, so that it never stays a zombie.
    threading.Thread(target=child.wait, name="windlass-node-reaper", daemon=True).start()


def _spawn(dirs: Dirs, program: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "WINDLASS_RUNTIME_DIR": str(dirs.runtime)}
    env["WINDLASS_STATE_DIR"] = str(dirs.state)
    # The client's secret. The node has its token in a file.
    env.pop("WINDLASS_TOKEN", None)
    log = _open_log(dirs.log)
    try:
        return subprocess.Popen(
            [os.path.abspath(program) if os.sep in program else program, "node"],
            env=env,
            # The node must not keep the working directory of the client that started it in use.
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    except OSError as error:
        raise _failed(f"cannot run {program}: {error.strerror}", "install windlass again") from None
    finally:
        log.close()


def _open_log(path: Path) -> IO[bytes]:
    try:
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.rename(path.with_suffix(".log.1"))
    except OSError:
        pass  # If the log cannot be renamed, it continues to grow.
    try:
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _failed(
            f"cannot open the node's log {path}: {error.strerror}", f"make {path} writable"
        ) from None
    return os.fdopen(file, "ab", buffering=0)


def _first_line(stdout: IO[bytes]) -> Optional[bytes]:
    """The node's first line, as much as there is if the node ended, or None after a timeout."""
    line, until = b"", time.monotonic() + READY_WAIT
    while b"\n" not in line and len(line) < READY_LINE_BYTES_MAX:
        left = until - time.monotonic()
        ready, _, _ = select.select([stdout], [], [], max(left, 0))
        if not ready:
            return None
        more = os.read(stdout.fileno(), 4096)
        if not more:
            break
        line += more
    return line


def _first_word(line: bytes) -> dict[str, Any]:
    try:
        said: Union[dict[str, Any], Any] = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            return file.read(LOG_TAIL_BYTES).decode(errors="replace").rstrip()
    except OSError as error:
        return f"(the log cannot be read: {error.strerror})"


def _failed(message: str, remedy: str) -> StartFailed:
    return StartFailed("start_failed", message, remedy)
