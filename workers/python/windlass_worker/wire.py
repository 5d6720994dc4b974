"""The protocol socket: whole frames out, whole frames in.

Owns the descriptor, the framing and the order of sent frames, and ends the process when the keeper
has closed the socket. Never interprets a message.

Two things here look odd and are deliberate:

* A signal handler can raise an exception in the main thread between any two bytecodes (an interrupt,
  or the `signal.alarm` of the session's code). The count of sent bytes, and received bytes, must
  survive that. `list.extend(map(call, ...))` makes the call and stores its result without a bytecode
  in between.
* Importing the `json` package costs more than this whole worker; its C scanner costs nothing.
"""

from _collections import deque
from _json import encode_basestring, make_scanner
from _socket import MSG_CMSG_CLOEXEC, MSG_DONTWAIT, SCM_RIGHTS, socket
from _struct import Struct
from _thread import RLock, get_ident
from os import _exit

FRAME_BYTES_MAX = 256 * 1024
HEADER_BYTES_MAX = 64 * 1024
# Most body bytes in one frame, with space for a header of the largest size.
CHUNK_BYTES_MAX = FRAME_BYTES_MAX - HEADER_BYTES_MAX - 4
# Characters of a text from the running code (a prompt, an error's message) in a header: even
# when each takes six bytes of JSON, the header stays within its limit.
TEXT_CHARS_MAX = 4096

# Bytes per receive call. While a large frame arrives, the rest of that frame.
_RECEIVE_SIZES = (64 * 1024,)
_LENGTHS = Struct(">II")
# The result of a read after the other side has closed.
_END = b""
# Exit status for an invalid frame of the keeper (EX_PROTOCOL).
_PROTOCOL_ERROR = 76


class _Json:
    """The decoder options that the C scanner reads."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


scan = make_scanner(_Json)


def frame(header, body=b""):
    """One frame: `header` is JSON as bytes, `body` raw."""
    return _LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body


def chunks(body):
    """The body in parts that fit a frame; one empty part for an empty body."""
    for at in range(0, len(body) or 1, CHUNK_BYTES_MAX):
        yield body[at : at + CHUNK_BYTES_MAX]


def quoted(text):
    """`text` as JSON, cut to a size that any header can hold. Lone surrogates are not JSON."""
    text = text[:TEXT_CHARS_MAX].encode("utf-8", "backslashreplace").decode("utf-8")
    return encode_basestring(text).encode("utf-8")


class Wire:
    """Sends from any thread; receives for one reader at a time (`inbox` says which)."""

    def __init__(self):
        self.fd = None
        self._main = get_ident()
        self._socket = self._send_now = self._receive_now = None
        self._held = b""
        # Data to send: (bytes, list of the counts already sent).
        self._outgoing = deque()
        # Reentrant: a callback during a send (a signal handler, the garbage collector) must not
        # wait for its own thread.
        self._lock = RLock()
        self._flusher = None
        self._received = []
        # Bytes needed to complete the next frame; 0 if unknown.
        self._needed = 0
        self._sizes = _RECEIVE_SIZES
        self.open = False

    def attach(self, fd):
        """Use this socket from now on."""
        self.fd = fd
        self._socket = socket(fileno=fd)
        self._send_now = self._socket.send
        self._receive_now = self._socket.recv
        self.open = True

    def close(self):
        """Stop sending and receiving. Safe in a forked child, where a lock may be held by a thread
        that no longer exists."""
        self.open = False
        self._socket.close()

    def adopt(self, fd):
        """Start over on another socket, in a twin."""
        self.__init__()
        self.attach(fd)

    def receive_descriptors(self, number):
        """Wait for this many descriptors, which come with one byte. Frames before it are kept."""
        room = 64 + 4 * number
        while True:
            data, rights, _, _ = self._socket.recvmsg(4096, room, MSG_CMSG_CLOEXEC)
            for _, kind, content in rights:
                if kind == SCM_RIGHTS:
                    return Struct("%di" % (len(content) // 4)).unpack(content)
            self._received.append(data)
            if not data:
                return ()

    def hold(self, data):
        """Send this data together with the main thread's next frame, in one call."""
        self._held += data

    def flush_held(self):
        """Send the held data now."""
        if self._held:
            self.send(b"")

    def send(self, first, *others):
        """Send whole frames in order, after all held data."""
        if not self.open:
            return
        if self._held and get_ident() == self._main:
            first = self._held + first
            self._held = b""
        if others:
            self._outgoing.extend([(data, []) for data in (first, *others)])
        else:
            self._outgoing.append((first, []))
        self._flush()

    def send_noted(self, data, note):
        """Send a whole frame. `note` is an empty list, by which `has_taken` knows the frame."""
        if not self.open:
            return
        if self._held and get_ident() == self._main:
            data = self._held + data
            self._held = b""
        self._outgoing.append((data, note))
        self._flush()

    def has_taken(self, note):
        """Whether `send_noted` has taken the frame of that note, whatever exception came then."""
        # A frame leaves `_outgoing` after its note has content, so another thread cannot hide it.
        return bool(note) or any(other is note for _, other in list(self._outgoing)) or bool(note)

    def _flush(self):
        # A signal handler that sends while this thread is sending leaves it to the outer call.
        if self.is_sending():
            return
        with self._lock:
            try:
                self._flusher = get_ident()
                self._send_outgoing()
            finally:
                self._flusher = None

    def is_sending(self):
        """Whether this thread is inside `send`."""
        return self._lock._is_owned()

    def _send_outgoing(self):
        outgoing, send_now = self._outgoing, self._send_now
        try:
            while outgoing:
                data, counts = outgoing[0]
                if not counts:
                    counts.extend(map(send_now, (data,)))
                while sum(counts) < len(data):
                    counts.extend(map(send_now, (memoryview(data)[sum(counts) :],)))
                outgoing.popleft()
        except (BrokenPipeError, ConnectionResetError):
            # The reader will find the end of the stream and end the worker.
            outgoing.clear()

    def wait(self):
        """Block until bytes arrive."""
        # Send what an interrupt left unsent. If another thread is sending, it sends that too, and
        # the reader need not wait for it. (`_flusher` may still name this thread after an
        # interrupt.)
        if self._outgoing and self._flusher in (None, self._main):
            self._flush()
        try:
            self._received.extend(map(self._receive_now, self._sizes))
        except ConnectionResetError:
            self._received.append(_END)

    def poll(self):
        """Receive the available bytes without blocking."""
        try:
            sizes = self._sizes
            while True:
                self._received.extend(map(self._receive_now, sizes, (MSG_DONTWAIT,)))
                # A short read means that no more bytes are available.
                if len(self._received[-1]) < sizes[0]:
                    return
                sizes = _RECEIVE_SIZES
        except BlockingIOError:
            pass
        except ConnectionResetError:
            self._received.append(_END)

    def frames(self):
        """The whole frames among the received bytes, as (header, body). A partial frame is kept."""
        received = self._received
        if not received:
            return ()
        ended = received[-1] == _END
        if self._needed and not ended:
            # Join the pieces of a large frame once, not with every piece.
            missing = self._needed - sum(map(len, received))
            if missing > 0:
                self._sizes = (missing,)
                return ()
            self._needed = 0
            self._sizes = _RECEIVE_SIZES
            if missing == 0 and len(received) > 1:
                found = _from_pieces(received)
                if found is not None:
                    received.clear()
                    return (found,)
        data = received[0] if len(received) == 1 else b"".join(received)
        found, at, size = [], 0, len(data)
        while size - at >= 8:
            rest, header_size = _LENGTHS.unpack_from(data, at)
            end = at + 4 + rest
            if end > size:
                self._needed = end - at
                self._sizes = (end - size,)
                break
            body_at = at + 8 + header_size
            found.append((_header(data[at + 8 : body_at]), data[body_at:end]))
            at = end
        received[:] = (data[at:],) if at < size else ()
        if ended:
            # The keeper is gone. The session's code must not keep an unreachable process alive.
            _exit(0)
        return found


def _from_pieces(pieces):
    """The frame in the pieces, with its body copied once; None if the header is split."""
    first = pieces[0]
    _, header_size = _LENGTHS.unpack_from(first)
    body_at = 8 + header_size
    if len(first) < body_at:
        return None
    body = b"".join((memoryview(first)[body_at:], *pieces[1:]))
    return _header(first[8:body_at]), body


def _header(data):
    try:
        return scan(data.decode("utf-8"), 0)[0]
    except (ValueError, StopIteration, SystemError):
        # SystemError: `json` is not imported, so its own error cannot be raised.
        _exit(_PROTOCOL_ERROR)
