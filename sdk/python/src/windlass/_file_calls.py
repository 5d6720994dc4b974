"""Requests for the files of a session's workspace, and their answers. Knows no socket."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, BinaryIO, Iterator, Literal, Mapping, Optional, Union
from urllib.parse import quote

from ._calls import Answer, Call, Flow, Repeat
from ._frames import message
from ._http import Head
from ._http import path as api_path

#: Bytes per read of a file.
READ_BYTES = 256 * 1024

#: Content to write: bytes, text (as UTF-8), or a file opened for reading bytes.
Content = Union[bytes, str, BinaryIO]


@dataclass(frozen=True)
class FileInfo:
    """A file that was written or read."""

    path: str
    bytes: int
    #: Changes with the content. Pass it back to overwrite only the version that you have seen.
    etag: str


@dataclass(frozen=True)
class FileEntry:
    """An entry of a directory."""

    path: str
    kind: Literal["file", "directory", "link", "other"]
    bytes: int
    modified_ms: int
    etag: Optional[str] = None


class FileList(list[FileEntry]):
    """Entries. `more` is True if the limit left entries out."""

    more: bool = False


class FileBytes(bytes):
    """A file's content, with its `etag`."""

    etag: str = ""


@dataclass(frozen=True)
class FileChange:
    """Something happened to a file; `overflow` means that changes were missed: list again."""

    kind: Literal["made", "changed", "removed", "overflow"]
    path: str


@dataclass(frozen=True)
class Write:
    """One write of a write-back: only over a file with this etag, or with `new` only where no file
    is."""

    data: Content
    etag: Optional[str] = None
    new: bool = False


@dataclass(frozen=True)
class Delete:
    """One removal of a write-back."""

    etag: Optional[str] = None


Change = Union[Content, Write, Delete, None]


def where(session: str, path: str) -> str:
    """The request path of a file. Its slashes stay slashes."""
    return f"{api_path('sessions', session, 'files')}/{quote(path.strip('/'), safe='/')}"


def listing(session: str, path: str, recursive: bool, limit: Optional[int]) -> Flow[FileList]:
    """Lists page by page, up to the end or the limit."""
    entries = FileList()
    asked: dict[str, Any] = {"path": path or None, "recursive": True if recursive else None}
    while True:
        asked["limit"] = None if limit is None else limit - len(entries)
        said = (yield Call("GET", api_path("sessions", session, "files", **asked))).json()
        entries.extend(
            FileEntry(e["path"], e["kind"], e["bytes"], e["modified_ms"], e.get("etag"))
            for e in said["entries"]
        )
        entries.more = bool(said["more"])
        if not entries.more or not said["entries"] or len(entries) == limit:
            return entries
        asked["after"] = entries[-1].path


def reading(session: str, path: str, start: Optional[int], stop: Optional[int]) -> Call:
    headers: tuple[tuple[str, str], ...] = ()
    if start is not None or stop is not None:
        last = "" if stop is None else str(stop - 1)
        headers = (("range", f"bytes={start or 0}-{last}"),)
    # `files/watch` is an endpoint, so a file of that name needs this parameter.
    query = "?content=true" if path.strip("/") == "watch" else ""
    return Call("GET", where(session, path) + query, headers=headers)


def read(session: str, path: str, start: Optional[int], stop: Optional[int]) -> Flow[FileBytes]:
    answer = yield reading(session, path, start, stop)
    content = FileBytes(answer.body)
    content.etag = etag_of(answer.head)
    return content


def put(
    session: str, path: str, data: Content, etag: Optional[str], new: bool
) -> Flow[FileInfo]:
    """Writes a file. Without a condition, and with data in memory, the request may be sent twice.
    """
    body = data.encode() if isinstance(data, str) else data
    plain = isinstance(body, (bytes, bytearray, memoryview))
    free = plain and etag is None and not new
    call = Call(
        "PUT",
        where(session, path),
        bytes(body) if plain else lambda: _pieces(body),  # type: ignore[arg-type]
        Repeat.FREELY if free else Repeat.IF_NOT_SENT,
        headers=_conditions(etag, new),
        content_type="application/octet-stream",
    )
    return _info((yield call))


def delete(session: str, path: str, etag: Optional[str]) -> Flow[None]:
    headers = _conditions(etag, False)
    yield Call("DELETE", where(session, path), repeat=Repeat.IF_NOT_SENT, headers=headers)


def write_back(
    session: str,
    changes: Mapping[str, Change],
    etags: Mapping[str, Optional[str]],
    *,
    within_policy: bool = False,
) -> Flow[Any]:
    """Makes all changes or none. `etags` holds the required etag of each path; None: the file must
    not exist. With `within_policy` only what the session's code may write."""

    def body() -> Iterator[bytes]:
        for path, change in changes.items():
            yield from _frames_of(path, change, etags)

    call = Call(
        "POST",
        api_path("sessions", session, "files", within_policy=within_policy or None),
        body,
        Repeat.IF_NOT_SENT,
        content_type="application/octet-stream",
    )
    answer = yield call
    return answer.json() if answer.body else None


def watching(session: str, path: str) -> Call:
    asked = api_path("sessions", session, "files", "watch", path=path or None)
    return Call("GET", asked, headers=(("accept", "text/event-stream"),))


def change_of(data: bytes) -> FileChange:
    said = json.loads(data)
    return FileChange(said["kind"], said.get("path", ""))


def _frames_of(
    path: str, change: Change, etags: Mapping[str, Optional[str]]
) -> Iterator[bytes]:
    if change is None:
        change = Delete()
    elif not isinstance(change, (Write, Delete)):
        change = Write(change)
    etag = change.etag if change.etag is not None else etags.get(path)
    match: dict[str, Any] = {} if etag is None else {"if_match": etag}
    if isinstance(change, Delete):
        yield from message({"kind": "delete", "path": path, **match}, b"")
        return
    if change.new or (path in etags and etag is None):
        match = {"if_none_match": "*"}
    data = change.data.encode() if isinstance(change.data, str) else change.data
    yield from message({"kind": "put", "path": path, **match}, data)


def _conditions(etag: Optional[str], new: bool) -> tuple[tuple[str, str], ...]:
    if new:
        return (("if-none-match", "*"),)
    return (("if-match", f'"{etag}"'),) if etag is not None else ()


def etag_of(head: Head) -> str:
    """The etag as in the API's JSON, without the quotes of the header."""
    return head.headers.get("etag", "").strip('"')


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(READ_BYTES):
        yield piece


def _info(answer: Answer) -> FileInfo:
    said = answer.json()
    return FileInfo(said["path"], said["bytes"], said["etag"])
