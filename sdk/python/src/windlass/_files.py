"""The files of a session's workspace, for the synchronous client."""

from __future__ import annotations

from typing import Any, BinaryIO, Iterator, Literal, Mapping, Optional

from . import _file_calls as calls
from ._calls import Failure
from ._file_calls import Change, Content, FileBytes, FileChange, FileInfo, FileList
from ._sse import Parser
from ._transport import Stream, Transport


class Files:
    """A session's files. Paths are relative to the workspace."""

    def __init__(self, transport: Transport, session: str) -> None:
        self._transport = transport
        self._session = session

    def put(
        self, path: str, data: Content, *, etag: Optional[str] = None, new: bool = False
    ) -> FileInfo:
        """Writes a file and creates its directories. With `etag` only over the file with that etag,
        with `new` only where no file is. Otherwise it raises `FileConflict` and writes nothing."""
        return self._transport.perform(calls.put(self._session, path, data, etag, new))

    def get(
        self, path: str, *, start: Optional[int] = None, stop: Optional[int] = None
    ) -> FileBytes:
        """A file's bytes, or a range of them; they carry its `etag`."""
        return self._transport.perform(calls.read(self._session, path, start, stop))

    def get_into(self, path: str, file: BinaryIO) -> FileInfo:
        """Copies a file of any size into an open file."""
        stream = self._transport.stream(calls.reading(self._session, path, None, None))
        length = 0
        try:
            for part in stream:
                file.write(part)
                length += len(part)
        except Failure as failure:
            raise failure.error from None
        finally:
            stream.close()
        return FileInfo(path, length, calls.etag_of(stream.head))

    def list(
        self, path: str = "", *, recursive: bool = False, limit: Optional[int] = None
    ) -> FileList:
        """The entries of a directory, in order; at most `limit`."""
        return self._transport.perform(calls.listing(self._session, path, recursive, limit))

    def delete(self, path: str, *, etag: Optional[str] = None) -> None:
        self._transport.perform(calls.delete(self._session, path, etag))

    def write_back(
        self,
        changes: Mapping[str, Change],
        *,
        etags: Optional[Mapping[str, Optional[str]]] = None,
        within_policy: bool = False,
    ) -> Any:
        """Makes many changes, all or none: a path's new content, or None to delete the file.
        `etags` holds the required etag of each path (None: the file must not exist). With
        `within_policy` it changes only what the session's code may change."""
        return self._transport.perform(
            calls.write_back(self._session, changes, etags or {}, within_policy=within_policy)
        )

    def watch(self, path: str = "") -> Watch:
        """Changes from now on, below a directory."""
        return Watch(self._transport, self._session, path)


class Watch:
    """Changes as they happen. An iterator, and a context manager that ends it."""

    def __init__(self, transport: Transport, session: str, path: str) -> None:
        self._transport = transport
        self._call = (session, path)
        self._ready: list[FileChange] = []
        self._parser = Parser()
        # Open the stream before this returns, so that no later change is missed.
        self._stream: Optional[Stream] = self._open()

    def __iter__(self) -> Iterator[FileChange]:
        return self

    def __next__(self) -> FileChange:
        while not self._ready:
            if self._stream is None:
                raise StopIteration
            self._more(self._stream)
        return self._ready.pop(0)

    def _open(self) -> Stream:
        self._parser = Parser()
        return self._transport.stream(calls.watching(*self._call))

    def _more(self, stream: Stream) -> None:
        try:
            data = stream.chunk()
        except Failure:
            stream.close()
            if self._stream is None:
                return  # Closed by another thread.
            # A new node does not know what happened in between.
            self._stream = self._open()
            self._ready.append(FileChange("overflow", self._call[1]))
            return
        if not data:
            self.close()
        self._ready.extend(calls.change_of(whole) for whole in self._parser.feed(data))

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.close()
        return False
