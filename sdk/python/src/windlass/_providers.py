"""What a session in WebAssembly may use of this program: files, HTTP requests, name lookups, programs.

Owns the host tools `files.*` and `host.*` and the two ready-made file providers. Knows no connection.
A provider's paths are relative, with `/` between the parts; the mount point itself is the empty path.
"""

from __future__ import annotations

import errno
import inspect
import os
import stat
import threading
import time
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import (
    Any, Awaitable, Callable, List, Literal, Mapping, Optional, Protocol, Sequence, TypedDict, Union,
)

from ._tool import Tool, tool

#: Most bytes of one read or write.
CALL_BYTES_MAX = 4 * 1024 * 1024

#: The kind of worker that uses these providers.
WORKER = "pyodide"

#: The variable that tells the worker to ask for files instead of using the workspace's directory.
_FILES_VARIABLE = {"WINDLASS_FILES": "host"}


class FileStat(TypedDict, total=False):
    """What a provider says about a file or directory."""

    kind: Literal["file", "directory"]
    #: Bytes of a file.
    size: int
    mtime_ms: int


class FileProvider(Protocol):
    """Serves the files of a session. Each method may also be async. An OSError becomes the same
    error in the code."""

    def stat(self, path: str) -> Any: ...

    def list(self, path: str) -> Any: ...

    def read(self, path: str, offset: int, length: int) -> Any: ...

    def write(
        self, path: str, offset: int, data: bytes, *, create: bool = False, truncate: bool = False
    ) -> Any: ...

    def mkdir(self, path: str) -> Any: ...

    def rename(self, path: str, to: str) -> Any: ...

    def remove(self, path: str, *, directory: bool = False) -> Any: ...


#: `http(method, url, headers, body)` returns a mapping with `status`, `headers` and `body` (bytes).
HttpProvider = Callable[[str, str, Sequence[tuple[str, str]], Optional[bytes]], Any]
#: `lookup(name)` returns the addresses of a name, as texts.
LookupProvider = Callable[[str], Any]
#: `run(args, shell=, cwd=, env=, input=)` returns a mapping with `returncode`, `stdout` and `stderr`.
RunProvider = Callable[..., Any]


@dataclass(frozen=True)
class HostProviders:
    """The providers of one session."""

    files: Optional[FileProvider] = None
    http: Optional[HttpProvider] = None
    lookup: Optional[LookupProvider] = None
    run: Optional[RunProvider] = None

    def check(self, worker: Optional[str]) -> None:
        given = [name for name in ("files", "http", "lookup", "run") if getattr(self, name)]
        if given and worker != WORKER:
            raise ValueError(f"{given[0]}= needs worker={WORKER!r}: other workers use the system's own")

    def environment(self, env: Optional[Mapping[str, str]]) -> Optional[Mapping[str, str]]:
        """The session's variables; a file provider adds one."""
        return env if self.files is None else {**(env or {}), **_FILES_VARIABLE}

    def tools(self) -> list[Tool]:
        offered = [] if self.files is None else _file_tools(self.files)
        if self.http is not None:
            offered.append(_http_tool(self.http))
        if self.lookup is not None:
            offered.append(_lookup_tool(self.lookup))
        if self.run is not None:
            offered.append(_run_tool(self.run))
        return offered


class DirectoryFiles:
    """Serves the files below a directory. Symlinks are neither shown nor followed, and a path cannot
    leave the directory."""

    def __init__(self, path: Union[str, os.PathLike[str]], *, read_only: bool = False) -> None:
        self._root = os.path.abspath(path)
        self._read_only = read_only
        if not os.path.isdir(self._root):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._root)

    def stat(self, path: str) -> FileStat:
        with self._parent(path) as (parent, name):
            found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        mtime_ms = found.st_mtime_ns // 1_000_000
        if stat.S_ISDIR(found.st_mode):
            return {"kind": "directory", "size": 0, "mtime_ms": mtime_ms}
        if not stat.S_ISREG(found.st_mode):
            raise _error(errno.EACCES, path)
        return {"kind": "file", "size": found.st_size, "mtime_ms": mtime_ms}

    def list(self, path: str) -> List[str]:
        with self._parent(path) as (parent, name):
            opened = os.open(name, _DIRECTORY, dir_fd=parent)
        try:
            with os.scandir(opened) as entries:
                return sorted(
                    entry.name
                    for entry in entries
                    if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
                )
        finally:
            os.close(opened)

    def read(self, path: str, offset: int, length: int) -> bytes:
        opened = self._open(path, os.O_RDONLY)
        try:
            return _read_exactly(opened, min(length, CALL_BYTES_MAX), offset)
        finally:
            os.close(opened)

    def write(
        self, path: str, offset: int, data: bytes, *, create: bool = False, truncate: bool = False
    ) -> None:
        self._check_writable(path)
        opened = self._open(path, os.O_WRONLY | (os.O_CREAT if create else 0))
        try:
            at = 0
            while at < len(data):
                at += os.pwrite(opened, memoryview(data)[at:], offset + at)
            if truncate:
                os.ftruncate(opened, offset + len(data))
        finally:
            os.close(opened)

    def mkdir(self, path: str) -> None:
        self._check_writable(path)
        with self._parent(path) as (parent, name):
            os.mkdir(name, dir_fd=parent)

    def rename(self, path: str, to: str) -> None:
        self._check_writable(path)
        with self._parent(path) as (parent, name), self._parent(to) as (to_parent, to_name):
            os.rename(name, to_name, src_dir_fd=parent, dst_dir_fd=to_parent)

    def remove(self, path: str, *, directory: bool = False) -> None:
        self._check_writable(path)
        with self._parent(path) as (parent, name):
            if directory:
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)

    def _check_writable(self, path: str) -> None:
        if self._read_only:
            raise _error(errno.EROFS, path)

    def _parent(self, path: str) -> _Parent:
        return _Parent(self._root, path)

    def _open(self, path: str, flags: int) -> int:
        """Opens a regular file. A pipe or device must not block or act."""
        with self._parent(path) as (parent, name):
            safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            opened = os.open(name, flags | safe, 0o666, dir_fd=parent)
        if stat.S_ISREG(os.fstat(opened).st_mode):
            return opened
        is_directory = stat.S_ISDIR(os.fstat(opened).st_mode)
        os.close(opened)
        raise _error(errno.EISDIR if is_directory else errno.EACCES, path)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Parent:
    """The open directory that holds a path's last part. Each part is opened beneath the one before,
    without following a link, so a swapped directory gains nothing."""

    def __init__(self, root: str, path: str) -> None:
        self._root = root
        self._parts = _parts(path)
        self._fd = -1

    def __enter__(self) -> tuple[int, str]:
        # The root's own path belongs to this program, and may be a link.
        self._fd = os.open(self._root, _DIRECTORY & ~os.O_NOFOLLOW)
        try:
            for part in self._parts[:-1]:
                below = os.open(part, _DIRECTORY, dir_fd=self._fd)
                os.close(self._fd)
                self._fd = below
        except BaseException:
            os.close(self._fd)
            raise
        return self._fd, self._parts[-1] if self._parts else "."

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


@dataclass
class MemoryFiles:
    """Serves files from memory. `files` maps paths to bytes."""

    files: dict[str, bytes] = field(default_factory=dict)
    #: Most bytes of all files together.
    bytes_max: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, Optional[bytearray]] = {"": None}
        self._times: dict[str, int] = {}
        for path, data in self.files.items():
            parts = _parts(path)
            for end in range(1, len(parts)):
                self._entries.setdefault("/".join(parts[:end]), None)
            self._entries["/".join(parts)] = bytearray(data)

    def __getitem__(self, path: str) -> bytes:
        """The content of a file."""
        with self._lock:
            return bytes(self._file(path))

    def stat(self, path: str) -> FileStat:
        with self._lock:
            data = self._entry(path)
            times = self._times.get(path, 0)
            if data is None:
                return {"kind": "directory", "size": 0, "mtime_ms": times}
            return {"kind": "file", "size": len(data), "mtime_ms": times}

    def list(self, path: str) -> List[str]:
        with self._lock:
            if self._entry(path) is not None:
                raise _error(errno.ENOTDIR, path)
            return sorted(other.rpartition("/")[2] for other in self._below(path, deep=False))

    def read(self, path: str, offset: int, length: int) -> bytes:
        with self._lock:
            return bytes(self._file(path)[offset : offset + min(length, CALL_BYTES_MAX)])

    def write(
        self, path: str, offset: int, data: bytes, *, create: bool = False, truncate: bool = False
    ) -> None:
        with self._lock:
            if create and path not in self._entries:
                self._check_parent(path)
                self._entries[path] = bytearray()
                self._touch(path)
            held = self._file(path)
            end = offset + len(data)
            grown = max(0, (end if data else 0) - len(held))
            if grown and sum(len(one) for one in self._entries.values() if one) + grown > self.bytes_max:
                raise _error(errno.ENOSPC, path)
            if grown:
                held.extend(bytes(grown))
            held[offset:end] = data
            if truncate:
                del held[end:]
            self._touch(path)

    def mkdir(self, path: str) -> None:
        with self._lock:
            if path in self._entries:
                raise _error(errno.EEXIST, path)
            self._check_parent(path)
            self._entries[path] = None
            self._touch(path)

    def rename(self, path: str, to: str) -> None:
        with self._lock:
            moved = self._entry(path)
            self._check_parent(to)
            if path == to:
                return
            if to.startswith(path + "/"):
                raise _error(errno.EINVAL, to)
            if to in self._entries:
                self._check_replaceable(to, moved is None)
            inner = [path, *self._below(path, deep=True)]
            taken = {to + one[len(path) :]: self._entries.pop(one) for one in inner}
            self._entries.update(taken)
            self._touch(path)
            self._touch(to)

    def remove(self, path: str, *, directory: bool = False) -> None:
        with self._lock:
            is_directory = self._entry(path) is None
            if is_directory != directory:
                raise _error(errno.EISDIR if is_directory else errno.ENOTDIR, path)
            if is_directory and (path == "" or self._below(path, deep=False)):
                raise _error(errno.ENOTEMPTY, path)
            del self._entries[path]
            self._touch(path)

    def _entry(self, path: str) -> Optional[bytearray]:
        if path not in self._entries:
            self._check_parent(path)
            raise _error(errno.ENOENT, path)
        return self._entries[path]

    def _file(self, path: str) -> bytearray:
        data = self._entry(path)
        if data is None:
            raise _error(errno.EISDIR, path)
        return data

    def _check_parent(self, path: str) -> None:
        parts = _parts(path)
        for end in range(len(parts)):
            above = "/".join(parts[:end])
            if above not in self._entries:
                raise _error(errno.ENOENT, above)
            if self._entries[above] is not None:
                raise _error(errno.ENOTDIR, above)

    def _check_replaceable(self, path: str, by_directory: bool) -> None:
        is_directory = self._entries[path] is None
        if is_directory and not by_directory:
            raise _error(errno.EISDIR, path)
        if by_directory and not is_directory:
            raise _error(errno.ENOTDIR, path)
        if is_directory and self._below(path, deep=False):
            raise _error(errno.ENOTEMPTY, path)

    def _below(self, path: str, *, deep: bool) -> List[str]:
        prefix = path + "/" if path else ""
        return [
            other
            for other in self._entries
            if other and other.startswith(prefix) and (deep or "/" not in other[len(prefix) :])
        ]

    def _touch(self, path: str) -> None:
        now = time.time_ns() // 1_000_000
        self._times[path] = now
        self._times[path.rpartition("/")[0]] = now


def _parts(path: str) -> list[str]:
    parts = path.split("/") if path else []
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise _error(errno.EACCES, path)
    return parts


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _read_exactly(opened: int, length: int, offset: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        part = os.pread(opened, length - len(found), offset + len(found))
        if not part:
            break
        found += part
    return bytes(found)


# The tools. Their arguments and results are JSON; bytes are base64.


def _file_tools(files: FileProvider) -> list[Tool]:
    async def stat(path: str) -> Any:
        return await _answer(path, lambda: files.stat(path))

    async def list(path: str) -> Any:
        names = await _answer(path, lambda: files.list(path))
        return {"entries": [entry for name in names if (entry := await _entry(files, path, name))]}

    async def read(path: str, offset: int, length: int) -> Any:
        data = await _answer(path, lambda: files.read(path, offset, min(length, CALL_BYTES_MAX)))
        return {"data": _text(data)}

    async def write(
        path: str, offset: int, data: str, create: bool = False, truncate: bool = False
    ) -> None:
        given = b64decode(data)
        if len(given) > CALL_BYTES_MAX:
            raise ValueError(f"a write of {len(given)} bytes is over the limit of {CALL_BYTES_MAX}")
        await _answer(
            path, lambda: files.write(path, offset, given, create=create, truncate=truncate)
        )

    async def mkdir(path: str) -> None:
        await _answer(path, lambda: files.mkdir(path))

    async def rename(path: str, to: str) -> None:
        await _answer(path, lambda: files.rename(path, to))

    async def remove(path: str, directory: bool = False) -> None:
        await _answer(path, lambda: files.remove(path, directory=directory))

    functions = (stat, list, read, write, mkdir, rename, remove)
    return [_made(f"files.{function.__name__}", function, files) for function in functions]


def _http_tool(http: HttpProvider) -> Tool:
    async def request(
        method: str, url: str, headers: list[list[str]], body: Optional[str] = None
    ) -> Any:
        """Sends an HTTP request."""
        pairs = [(str(name), str(value)) for name, value in headers]
        given = None if body is None else b64decode(body)
        answer = await _settled(lambda: http(method, url, pairs, given))
        headers_out = answer.get("headers") or []
        pairs_out = headers_out.items() if isinstance(headers_out, Mapping) else headers_out
        return {
            **{name: answer[name] for name in ("url",) if name in answer},
            "status": answer["status"],
            "headers": [[str(name), str(value)] for name, value in pairs_out],
            "body": _text(answer.get("body") or b""),
        }

    return _made("host.http", request, http)


def _lookup_tool(lookup: LookupProvider) -> Tool:
    async def addresses(name: str) -> Any:
        """Finds the addresses of a name."""
        return {"addresses": [str(one) for one in await _settled(lambda: lookup(name))]}

    return _made("host.lookup", addresses, lookup)


def _run_tool(run: RunProvider) -> Tool:
    async def program(
        args: Union[str, list[str]],
        shell: bool = False,
        cwd: Optional[str] = None,
        env: Optional[dict[str, str]] = None,
        input: str = "",
    ) -> Any:
        """Runs a program to its end."""
        given = b64decode(input)
        answer = await _settled(lambda: run(args, shell=shell, cwd=cwd, env=env, input=given))
        output = {name: _text(answer.get(name) or b"") for name in ("stdout", "stderr")}
        return {"returncode": int(answer["returncode"]), **output}

    return _made("host.run", program, run)


def _made(name: str, function: Callable[..., Awaitable[Any]], provider: Any) -> Tool:
    """A tool: async if the provider is, else a plain function, which runs in a thread."""
    method = getattr(provider, name.partition(".")[2], None) if name.startswith("files.") else provider
    called = method if inspect.isroutine(method) else getattr(method, "__call__", None)
    if inspect.iscoroutinefunction(called):
        return tool(function, name=name)
    plain = tool(function, name=name)

    def run(**arguments: Any) -> Any:
        step = function(**arguments)
        try:
            step.send(None)  # type: ignore[attr-defined]
        except StopIteration as done:
            return done.value
        step.close()  # type: ignore[attr-defined]
        raise TypeError(f"{name}: the provider's function is async, but was not declared with `async def`")

    return Tool(
        name=name, description=plain.description, input_schema=plain.input_schema, function=run,
        is_async=False, _converts=plain._converts, _required=plain._required,
    )


async def _entry(files: FileProvider, path: str, name: str) -> Optional[dict[str, Any]]:
    """One name of a list, with what is known about it; None if it is gone."""
    try:
        return {**await _settled(lambda: files.stat(f"{path}/{name}" if path else name)), "name": name}
    except OSError:
        return None


async def _settled(act: Callable[[], Any]) -> Any:
    value = act()
    return await value if inspect.isawaitable(value) else value


async def _answer(path: str, act: Callable[[], Any]) -> Any:
    """The provider's answer. An error carries its number's name, and the session's path instead of
    this machine's."""
    try:
        return await _settled(act)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0)
        # What only a link or a special file causes is a refusal.
        name = "EACCES" if name in ("ELOOP", "ENXIO", "EPERM") else name
        if name is None:
            raise
        raise OSError(f"{name}: {error.strerror}: {path}") from None


def _text(data: Any) -> str:
    return b64encode(bytes(data)).decode()
