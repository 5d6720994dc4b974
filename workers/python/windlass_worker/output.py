"""The standard streams of the running code, and the value of its last expression.

Owns `sys.stdout`, `sys.stderr` and the display hook. Never buffers: printed text is in the pipe when
`print` returns, so it keeps its order among the writes of `os.write`, C code and child processes to
the same pipe. (The interpreter's `-u` makes C's stdio unbuffered.)
"""

import builtins
import sys
from _thread import get_ident
from io import BufferedIOBase, TextIOWrapper
from os import write as write_some

from .hooks import like
from .wire import chunks, frame

# Types whose values have no rich form; searching for one would slow down every small turn.
_PLAIN = frozenset((int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, type))


class Output:
    """Sends output to the pipes, or over the protocol for threads whose turn is over."""

    def __init__(self, wire, turns, show_rich):
        self._wire = wire
        self._turns = turns
        self._show_rich = show_rich

    def install(self):
        sys.stdout = sys.__stdout__ = self._text(1, "stdout", "surrogateescape")
        sys.stderr = sys.__stderr__ = self._text(2, "stderr", "backslashreplace")
        sys.displayhook = self.show_result
        builtins.print = like(print, _make_print(print, sys.stdout, sys.stderr))

    def _text(self, fd, name, errors):
        pipe = _Stream(self, fd, name)
        stream = TextIOWrapper(pipe, "utf-8", errors, newline="\n", write_through=True)
        stream.mode = "w"
        return stream

    def write(self, fd, stream, data):
        turns, thread = self._turns, get_ident()
        if thread == turns.main:
            return _write_all(fd, data)
        with turns.fence:
            turn = turns.of(thread)
            if turn == turns.current or turns.forked:
                return _write_all(fd, data)
        header = b'{"kind":"output","turn":%d,"stream":"%b","background":true}' % (turn, stream)
        self._wire.send(b"".join(frame(header, chunk) for chunk in chunks(data)))

    def say(self, stream, text):
        """Send text of the worker itself: a result or a traceback. It goes out with the next frame.
        """
        data = text.encode("utf-8", "backslashreplace")
        header = b'{"kind":"output","turn":%d,"stream":"%b"}' % (self._turns.current, stream)
        if len(data) < 65536:
            self._wire.hold(frame(header, data))
        else:
            self._wire.hold(b"".join(frame(header, chunk) for chunk in chunks(data)))

    def show_result(self, value):
        """Show the value of an expression, as the interactive interpreter does."""
        if value is None:
            return
        builtins._ = None
        text = repr(value) + "\n"
        if self._turns.current is None or self._turns.forked:
            sys.stdout.write(text)
        else:
            self.say(b"result", text)
            if type(value) not in _PLAIN:
                self._show_rich(value)
        builtins._ = value


class _Stream(BufferedIOBase):
    """One of the two pipes as an unbuffered binary file that cannot be closed."""

    def __init__(self, output, fd, name):
        self._output = output
        self._fd = fd
        self._stream = name.encode()
        self.name = "<%s>" % name
        self.mode = "wb"

    def write(self, data):
        if type(data) is not bytes:
            if isinstance(data, str):
                raise TypeError("a bytes-like object is required, not 'str'")
            data = bytes(memoryview(data))
        if data:
            self._output.write(self._fd, self._stream, data)
        return len(data)

    def fileno(self):
        return self._fd

    def writable(self):
        return True

    def close(self):
        """The pipe belongs to the session, not to the code that prints."""


def _make_print(original, stdout, stderr):
    def print(*objects, sep=" ", end="\n", file=None, flush=False):
        """One write per `print`: lines of several threads or processes do not mix."""
        stream = sys.stdout if file is None else file
        is_ours = stream is stdout or stream is stderr
        if not is_ours or type(sep) is not str or type(end) is not str:
            return original(*objects, sep=sep, end=end, file=file, flush=flush)
        stream.write(sep.join(map(str, objects)) + end)

    return print


def _write_all(fd, data):
    done = write_some(fd, data)
    while done < len(data):
        done += write_some(fd, memoryview(data)[done:])
