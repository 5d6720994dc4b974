"""Frames: a header in JSON and a body of raw bytes, with their lengths. Owns the format and its limits."""

from __future__ import annotations

import json
from struct import Struct
from typing import Any, BinaryIO, Iterator, Mapping, Union

#: A frame's bytes after its first length word.
FRAME_BYTES_MAX = 256 * 1024

#: Most body bytes in one frame; a header always fits beside them.
CHUNK_BYTES_MAX = 196_604

#: One message, all its frames together.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024

LENGTHS = Struct(">II")

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def frame_head(header: Mapping[str, Any], body_length: int) -> bytes:
    """A frame up to its body."""
    said = _encode(header).encode()
    return LENGTHS.pack(4 + len(said) + body_length, len(said)) + said


def message(header: Mapping[str, Any], body: Union[bytes, BinaryIO]) -> Iterator[bytes]:
    """A message in as many frames as needed. The body is read piece by piece."""
    piece = _next(body, 0)
    at = len(piece)
    while True:
        following = _next(body, at) if len(piece) == CHUNK_BYTES_MAX else b""
        at += len(following)
        more = {"more": True} if following else {}
        yield frame_head({**header, **more}, len(piece)) + piece
        if not following:
            return
        piece = following


def _next(body: Union[bytes, BinaryIO], at: int) -> bytes:
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body[at : at + CHUNK_BYTES_MAX])
    # A read may return less than requested; only an empty read is the end.
    parts: list[bytes] = []
    wanted = CHUNK_BYTES_MAX
    while wanted and (part := body.read(wanted)):
        parts.append(part)
        wanted -= len(part)
    return b"".join(parts)
