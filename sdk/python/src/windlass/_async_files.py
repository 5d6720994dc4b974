"""The files of a session's workspace, for the asynchronous client."""

from __future__ import annotations

from typing import Any, BinaryIO, Literal, Mapping, Optional

from . import _file_calls as calls
from ._async_transport import AsyncStream, AsyncTransport
from ._calls import Failure
from ._file_calls import Change, Content, FileBytes, FileChange, FileInfo, FileList
from ._sse import Parser


class AsyncFiles:
    """A session's files. Paths are relative to the workspace."""

    def __init__(self, transport: AsyncTransport, session: str) -> None:
        self._transport = transport
        self._session = session

    async def put(
        self, path: str, data: Content, *, etag: Optional[str] = None, new: bool = False
    ) -> FileInfo:
        """Writes a file; see `Files.put`."""
        return await self._transport.perform(calls.put(self._session, path, data, etag, new))

    async def get(
        self, path: str, *, start: Optional[int] = None, stop: Optional[int] = None
    ) -> FileBytes:
        """A file's bytes, or a range of them; they carry its `etag`."""
        return await self._transport.perform(calls.read(self._session, path, start, stop))

    async def get_into(self, path: str, file: BinaryIO) -> FileInfo:
        """Copies a file of any size into an open file."""
        stream = await self._transport.stream(calls.reading(self._session, path, None, None))
        length = 0
        try:
            async for part in stream:
                file.write(part)
                length += len(part)
        except Failure as failure:
            raise failure.error from None
        finally:
            stream.close()
        return FileInfo(path, length, calls.etag_of(stream.head))

    async def list(
        self, path: str = "", *, recursive: bool = False, limit: Optional[int] = None
    ) -> FileList:
        """The entries of a directory, in order; at most `limit`."""
        return await self._transport.perform(calls.listing(self._session, path, recursive, limit))

    async def delete(self, path: str, *, etag: Optional[str] = None) -> None:
        await self._transport.perform(calls.delete(self._session, path, etag))

    async def write_back(
        self,
        changes: Mapping[str, Change],
        *,
        etags: Optional[Mapping[str, Optional[str]]] = None,
        within_policy: bool = False,
    ) -> Any:
        """Makes many changes, all or none; see `Files.write_back`."""
        return await self._transport.perform(
            calls.write_back(self._session, changes, etags or {}, within_policy=within_policy)
        )

    async def watch(self, path: str = "") -> AsyncWatch:
        """Changes from now on, below a directory."""
        watch = AsyncWatch(self._transport, self._session, path)
        await watch._open()
        return watch


class AsyncWatch:
    """Changes as they happen. An async iterator, and a context manager that ends it."""

    def __init__(self, transport: AsyncTransport, session: str, path: str) -> None:
        self._transport = transport
        self._call = (session, path)
        self._ready: list[FileChange] = []
        self._parser = Parser()
        self._stream: Optional[AsyncStream] = None

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> FileChange:
        while not self._ready:
            if self._stream is None:
                raise StopAsyncIteration
            await self._more(self._stream)
        return self._ready.pop(0)

    async def _open(self) -> None:
        self._parser = Parser()
        self._stream = await self._transport.stream(calls.watching(*self._call))

    async def _more(self, stream: AsyncStream) -> None:
        try:
            data = await stream.chunk()
        except Failure:
            stream.close()
            # A new node does not know what happened in between.
            await self._open()
            self._ready.append(FileChange("overflow", self._call[1]))
            return
        if not data:
            self.close()
        self._ready.extend(calls.change_of(whole) for whole in self._parser.feed(data))

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        self.close()
        return False
