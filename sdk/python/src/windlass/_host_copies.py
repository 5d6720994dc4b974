"""The copies of workspace files that one call of a tool works on: fetches them before the function
runs, writes changed ones back after it, and removes them all. Knows no socket.

The paths come from the session's code. The node resolves them, for reading as any client's, and for
writing only where the session's policy lets the code write.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import stat
import tempfile
import threading
from dataclasses import dataclass
from typing import Any, BinaryIO, Callable, Optional, cast

from . import _calls as calls
from . import _file_calls as file_calls
from ._calls import Failure
from ._context import ToolCall
from ._errors import FileMissing, PathRefused, failed
from ._file_arguments import COPY, File
from ._file_calls import READ_BYTES, Write
from ._schema import ArgumentError
from ._tool import Tool
from ._transport import Stream, Transport

#: The largest file that a call can be given, or can write back.
FILE_BYTES_MAX = 256 * 1024 * 1024

#: Most bytes of all files of one call.
CALL_BYTES_MAX = 1024 * 1024 * 1024

#: Most bytes of the copies of all open calls of this process. A sparse file costs a session nothing, and
#: its copy is that long.
HOST_BYTES_MAX = 4 * 1024 * 1024 * 1024

#: Most files of one call.
FILES_MAX = 64

#: The longest path. The node accepts no longer one.
PATH_BYTES_MAX = 4000


class FileTooLarge(ValueError):
    """A file, the files of a call, or those of all open calls are larger than a tool host accepts."""


class _Budget:
    """Counts the bytes of all copies of this process. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.held = 0

    def take(self, length: int) -> None:
        with self._lock:
            if self.held + length > HOST_BYTES_MAX:
                raise FileTooLarge(
                    f"the files of all open calls have more than {HOST_BYTES_MAX} bytes together; "
                    "call the tool again when other calls have ended"
                )
            self.held += length

    def release(self, length: int) -> None:
        with self._lock:
            self.held -= length


_budget = _Budget()


@dataclass
class _HostCopy:
    """One copy. `etag` and `digest` tell the version that was fetched; None if no file existed."""

    place: pathlib.Path
    writes_back: bool
    etag: Optional[str] = None
    digest: Optional[bytes] = None


class HostCopies:
    """The copies of one call, in a directory that only this user can open. Close it after the call."""

    def __init__(self, transport: Transport, call: ToolCall) -> None:
        self._transport = transport
        self._call = call
        #: By path in the workspace.
        self._copies: dict[str, _HostCopy] = {}
        #: The bytes that were received, or that are written back.
        self._bytes = 0
        #: The bytes that this call has taken from the budget of the process.
        self._held = 0
        self._directory: Optional[tempfile.TemporaryDirectory[str]] = None
        #: Held while files are fetched or written, so that `close` waits for that.
        self._busy = threading.Lock()
        self._closed = False

    def __enter__(self) -> HostCopies:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def bind(self, tool: Tool, body: bytes) -> Callable[[], Any]:
        """The tool's function with its arguments. Its files have been fetched."""
        with self._busy:
            self._check_wanted()
            token = COPY.set(self._copy)
            try:
                return tool.bind(body)
            finally:
                COPY.reset(token)

    def write_back(self) -> None:
        """Writes the changed copies, all or none. Writes nothing for a call that is over, also if
        it ends while its files are compared or sent: the node discards a body that is cut."""
        with self._busy:
            self._check_wanted()
            opened: list[BinaryIO] = []
            try:
                changes: dict[str, file_calls.Change] = {}
                self._bytes = 0
                for path, copy in self._copies.items():
                    file = self._changed(path, copy)
                    if file is not None:
                        opened.append(file)
                        content = cast(BinaryIO, _WantedReader(file, self._check_wanted))
                        changes[path] = Write(content, copy.etag, new=copy.etag is None)
                self._check_wanted()
                if changes:
                    session = self._call.session
                    flow = file_calls.write_back(session, changes, {}, within_policy=True)
                    self._transport.perform(flow)
            finally:
                for file in opened:
                    file.close()

    def close(self) -> None:
        """Removes the copies."""
        with self._busy:
            self._closed = True
            self._copies.clear()
            directory, self._directory = self._directory, None
            try:
                if directory is not None:
                    directory.cleanup()
            finally:
                held, self._held = self._held, 0
                _budget.release(held)

    # Fetching

    def _copy(self, named: str, mark: File) -> pathlib.Path:
        path = self._path_of(named)
        known = self._copies.get(path)
        if known is not None:
            # The same file twice is one copy, so that no change hides the other.
            known.writes_back = known.writes_back or mark.write_back
            return known.place
        if len(self._copies) >= FILES_MAX:
            raise FileTooLarge(f"the call names more than {FILES_MAX} files")
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(
                prefix="windlass-", ignore_cleanup_errors=True
            )
        # A directory for each copy, because files of different directories can have the same name.
        inside = pathlib.Path(self._directory.name, str(len(self._copies)))
        inside.mkdir(mode=0o700)
        copy = _HostCopy(inside / path.rpartition("/")[2], mark.write_back)
        try:
            self._fetch(path, copy)
        except FileMissing:
            if not mark.write_back:
                raise FileNotFoundError(f"there is no file {named!r} in the workspace") from None
        self._copies[path] = copy
        return copy.place

    def _path_of(self, named: str) -> str:
        """The path relative to the workspace. `..` and symlinks are left to the node."""
        try:
            length = len(named.encode())
        except UnicodeEncodeError:
            raise ArgumentError("a path with half of a surrogate pair names no file") from None
        if length > PATH_BYTES_MAX:
            raise _refused(named[:80], f"it is longer than {PATH_BYTES_MAX} bytes")
        path = named
        if named.startswith("/"):
            session = self._transport.perform(calls.look(self._call.session))
            workspace = session["workspace"].rstrip("/") + "/"
            if not named.startswith(workspace):
                raise _refused(named, f"it is not in the workspace {workspace}")
            path = named[len(workspace) :]
        path = "/".join(part for part in path.split("/") if part not in ("", "."))
        if not path:
            raise _refused(named, "it names no file")
        return path

    def _fetch(self, path: str, copy: _HostCopy) -> None:
        request = file_calls.reading(self._call.session, path, None, None)
        try:
            stream = self._transport.stream(request)
        except Failure as failure:
            raise failure.error from None
        try:
            self._receive(path, copy, stream)
        except Failure as failure:
            raise failure.error from None
        finally:
            stream.close()

    def _receive(self, path: str, copy: _HostCopy, stream: Stream) -> None:
        announced = int(stream.head.headers.get("content-length", "0"))
        self._check_size(path, announced, self._bytes + announced)
        digest, length = hashlib.sha256(), 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(copy.place, flags, 0o600), "wb") as file:
            for piece in stream:
                length += len(piece)
                self._bytes += len(piece)
                self._check_size(path, length, self._bytes)
                self._check_wanted()
                _budget.take(len(piece))
                self._held += len(piece)
                digest.update(piece)
                file.write(piece)
        copy.etag, copy.digest = file_calls.etag_of(stream.head), digest.digest()

    # Writing back

    def _changed(self, path: str, copy: _HostCopy) -> Optional[BinaryIO]:
        """The open copy if its content is not what was fetched. A copy that the tool removed, or
        never made, changes nothing."""
        if not copy.writes_back:
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = open(os.open(copy.place, flags), "rb")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refused(path, f"its copy cannot be opened: {error.strerror}") from None
        try:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise _refused(path, "the tool put something else than a file in place of its copy")
            self._bytes += about.st_size
            self._check_size(path, about.st_size, self._bytes)
            content = _WantedReader(file, self._check_wanted)
            if copy.digest is not None and _digest(content) == copy.digest:
                file.close()
                return None
            file.seek(0)
            return file
        except BaseException:
            file.close()
            raise

    def _check_size(self, path: str, length: int, whole: int) -> None:
        if length > FILE_BYTES_MAX:
            raise FileTooLarge(
                f"the file {path!r} has more than {FILE_BYTES_MAX} bytes, the limit of a tool's file"
            )
        if whole > CALL_BYTES_MAX:
            raise FileTooLarge(
                f"the files of the call have more than {CALL_BYTES_MAX} bytes together"
            )

    def _check_wanted(self) -> None:
        """Ends the work for a call that nobody waits for."""
        if self._closed or self._call.cancelled:
            raise failed("tool_cancelled", "the call is over: nothing was written back")


class _WantedReader:
    """A file that can be read only while its call is wanted."""

    def __init__(self, file: BinaryIO, check_wanted: Callable[[], None]) -> None:
        self._file = file
        self._check_wanted = check_wanted

    def read(self, length: int) -> bytes:
        self._check_wanted()
        return self._file.read(length)


def _digest(file: _WantedReader) -> bytes:
    digest = hashlib.sha256()
    while piece := file.read(READ_BYTES):
        digest.update(piece)
    return digest.digest()


def _refused(path: str, why: str) -> PathRefused:
    return PathRefused(
        "path_refused",
        f"the path {path!r} is refused: {why}",
        "name a file by its path in the workspace",
    )
