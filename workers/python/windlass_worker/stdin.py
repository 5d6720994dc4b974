"""Standard input of the running code. The worker asks for input only when the code reads.

Owns the input bytes of the current turn, and every way to read them: `input`, `getpass`,
`sys.stdin`, `os.read(0, ...)`, `os.readv(0, ...)`, `open(0)`. Never keeps a byte for another turn:
there is a single buffer, and it is emptied when a turn ends or is interrupted.

Only the main thread may read the protocol, so only it can wait for input. Another thread that reads
gets a RuntimeError. In a forked child standard input is at its end.
"""

import builtins
import io
import os
import posix
import sys
from _thread import get_ident

from .hooks import like
from .wire import frame, quoted

_ENCODING = "utf-8"
_ERRORS = "surrogateescape"
# A character takes at most this many bytes.
_CHARACTER_BYTES_MAX = 4

_fstat = os.fstat


class Input:
    """The unread input of the current turn."""

    def __init__(self, wire, inbox, turns):
        self._wire = wire
        self._inbox = inbox
        self._turns = turns
        self._unread = bytearray()
        self._ended = False
        self._stream = None
        self._null = _identity(0)

    def install(self):
        self._inbox.when_interrupted = self.end
        self._stream = sys.stdin = sys.__stdin__ = TextStream(self)
        builtins.input = like(builtins.input, self._make_input(builtins.input))
        builtins.open = io.open = like(builtins.open, self._make_open(builtins.open))
        os.read = posix.read = like(os.read, self._make_read(os.read))
        os.readv = posix.readv = like(os.readv, self._make_readv(os.readv))

    def install_getpass(self, module):
        """`getpass` was imported: mark its questions as secret."""

        def getpass(prompt="Password: ", stream=None, **_options):
            """Prompt for a password; the answer is not shown or recorded."""
            return self._text_line(prompt, secret=True)

        module.getpass = module.unix_getpass = module.fallback_getpass = getpass

    def reset(self):
        """The turn is over: drop its unread input."""
        self._unread.clear()
        self._ended = False

    def end(self):
        """The turn was interrupted: code that reads again, such as a debugger, finds the end of
        input."""
        self._unread.clear()
        self._ended = True

    def is_managed(self, fd):
        """Whether reading `fd` asks for input. It does not if the code has replaced descriptor 0.
        """
        return fd == 0 and not self._turns.forked and _identity(0) == self._null

    def take(self, size):
        """At most `size` of the unread bytes."""
        data = bytes(self._unread[:size])
        del self._unread[:size]
        return data

    def give_back(self, data):
        """Put bytes back in front of the unread ones."""
        self._unread[:0] = data

    def some(self, size):
        """At most `size` bytes; waits for at least one. Empty at the end of input."""
        while size and not self._unread and self.more():
            pass
        return self.take(size)

    def up_to(self, size):
        """`size` bytes. If there are fewer, asks for one answer that is not empty, and returns what there is then: a
        short answer is the whole answer. Empty at the end of input."""
        if len(self._unread) < size:
            while self.more() and not self._unread:
                pass
        return self.take(size)

    def everything(self):
        """Everything up to the end of input."""
        while self.more():
            pass
        return self.take(len(self._unread))

    def characters(self, size):
        """`size` characters; fewer only at the end of input."""
        while True:
            # At the end of input an incomplete character is taken as it is.
            data = bytes(self._unread[: size * _CHARACTER_BYTES_MAX])
            text = _decode(data, not self._ended)[:size]
            if len(text) == size or not self.more():
                text = _decode(data, not self._ended)[:size]
                self.take(len(text.encode(_ENCODING, _ERRORS)))
                return text

    def line(self):
        """A line with its line end. An answer without one counts as a line. Empty at the end of
        input."""
        while not self._unread and self.more():
            pass
        return self.take(self._unread.find(b"\n") + 1 or len(self._unread))

    def more(self, prompt="", secret=False):
        """Wait for one answer, which may be empty. False when no more input can come."""
        turn = self._turns.current
        if self._ended or turn is None or self._turns.forked:
            return False
        if get_ident() != self._turns.main:
            raise RuntimeError("only the main thread can ask for input")
        next_frame = self._inbox.take_ready()
        while next_frame is not None and not self._is_answer(next_frame, turn):
            next_frame = self._inbox.take_ready()
        if next_frame is None:
            self._wire.send(
                frame(
                    b'{"kind":"stdin_wait","turn":%d,"prompt":%b,"secret":%b}'
                    % (turn, quoted(prompt), b"true" if secret else b"false")
                )
            )
        while next_frame is None or self._is_unfinished(next_frame, turn):
            next_frame = self._inbox.take()
        return not self._ended or bool(self._unread)

    def _is_unfinished(self, next_frame, turn):
        """Take a frame in; False if it was the last one of an answer."""
        if not self._is_answer(next_frame, turn):
            return True
        header, body = next_frame
        self._unread += body
        self._ended = bool(header.get("eof"))
        return bool(header.get("more"))

    def _is_answer(self, next_frame, turn):
        header = next_frame[0]
        if header.get("kind") == "shutdown":
            # The main loop handles it, and this turn must end first.
            self._inbox.put_back(next_frame)
            raise KeyboardInterrupt
        return header.get("kind") == "turn_input" and header.get("turn") == turn

    def _text_line(self, prompt, secret=False):
        if not self._unread and not self.more(str(prompt), secret):
            raise EOFError("EOF when reading a line")
        text = _decode(self.line() if self._unread else b"")
        return text[:-2] if text.endswith("\r\n") else text[:-1] if text.endswith("\n") else text

    def _make_input(self, original):
        def input(prompt="", /):
            if sys.stdin is not self._stream:
                return original(prompt)
            return self._text_line(prompt)

        return input

    def _make_open(self, original):
        def open(file, mode="r", *arguments, **options):
            if type(file) is int and self.is_managed(file) and mode.startswith("r"):
                return ByteStream(self) if "b" in mode else TextStream(self)
            return original(file, mode, *arguments, **options)

        return open

    def _make_read(self, original):
        def read(fd, length, /):
            if fd == 0 and self.is_managed(fd):
                return self.some(length)
            return original(fd, length)

        return read

    def _make_readv(self, original):
        def readv(fd, buffers, /):
            if fd != 0 or not self.is_managed(fd):
                return original(fd, buffers)
            views = [memoryview(buffer).cast("B") for buffer in buffers]
            data = self.some(sum(len(view) for view in views))
            at = 0
            for view in views:
                part = data[at : at + len(view)]
                view[: len(part)] = part
                at += len(part)
            return len(data)

        return readv


class _Stream:
    """Common part of the text and the byte stream: descriptor 0, which the code cannot close."""

    name = "<stdin>"

    def fileno(self):
        return 0

    def readable(self):
        return True

    def close(self):
        """The next turn reads it again."""


class ByteStream(_Stream, io.BufferedIOBase):
    """Standard input as bytes."""

    mode = "rb"

    def __init__(self, source):
        self._source = source

    def read(self, size=-1, /):
        return self._source.everything() if size is None or size < 0 else self._source.up_to(size)

    def read1(self, size=-1, /):
        return self._source.some(io.DEFAULT_BUFFER_SIZE if size is None or size < 0 else size)

    def readinto(self, buffer, /):
        return self._fill(buffer, self.read)

    def readinto1(self, buffer, /):
        return self._fill(buffer, self.read1)

    def _fill(self, buffer, read):
        with memoryview(buffer).cast("B") as view:
            data = read(len(view))
            view[: len(data)] = data
            return len(data)

    def peek(self, _size=0, /):
        data = self._source.some(io.DEFAULT_BUFFER_SIZE)
        self._source.give_back(data)
        return data

    def readline(self, size=-1, /):
        line = self._source.line()
        if size is None or size < 0:
            return line
        self._source.give_back(line[size:])
        return line[:size]


class TextStream(_Stream, io.TextIOBase):
    """Standard input as text."""

    mode = "r"
    encoding = _ENCODING
    errors = _ERRORS
    newlines = None
    line_buffering = False
    write_through = False

    def __init__(self, source):
        self._source = source
        self.buffer = ByteStream(source)

    def read(self, size=-1, /):
        if size is None or size < 0:
            return _universal(_decode(self._source.everything()))
        return self._source.characters(size)

    def readline(self, size=-1, /):
        line = _universal(_decode(self._source.line()))
        if size is None or size < 0:
            return line
        self._source.give_back(line[size:].encode(_ENCODING, _ERRORS))
        return line[:size]

    def reconfigure(self, **_options):
        """Ignored: input is always UTF-8."""


def _decode(data, cut=False):
    """Bytes as text. With `cut`, an incomplete character at the end is left out, since more may
    follow."""
    if cut:
        for back in range(1, min(_CHARACTER_BYTES_MAX, len(data) + 1)):
            lead = data[-back]
            if lead >= 0xC0:
                length = 4 if lead >= 0xF0 else 3 if lead >= 0xE0 else 2
                if length > back:
                    data = data[:-back]
                break
            if lead < 0x80:
                break
    return data.decode(_ENCODING, _ERRORS)


def _universal(text):
    return text.replace("\r\n", "\n") if "\r" in text else text


def _identity(fd):
    """The identity of an open file, to see whether a descriptor still refers to it."""
    try:
        status = _fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_rdev
