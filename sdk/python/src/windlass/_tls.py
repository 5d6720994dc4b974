"""TLS to a node: which certificates are trusted, a blocking socket in TLS, and what its failures mean. The certificate
of a node is always verified."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Iterable, Optional, Union

from ._errors import WindlassError, failed

#: Bytes per read of the socket below TLS.
_READ_BYTES = 256 * 1024

#: The longest text of a record.
_RECORD_BYTES = 16 * 1024

#: Bytes that are encrypted before they are sent.
_WRITE_BYTES = 256 * 1024

#: What OpenSSL, by its version, calls an answer that is not TLS.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")

#: Codes of OpenSSL's verification (`X509_V_ERR_`): no known authority, another name, outside of its time.
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_WRONG_NAME = (62, 64)
_NOT_YET_VALID, _EXPIRED = 9, 10

_CA_REMEDY = "set WINDLASS_CA, or `ca`, to a PEM file with the certificate of the authority that signed the node's"


def context(ca: Optional[str]) -> ssl.SSLContext:
    """Trusts the authorities of this machine, or with `ca` only those of that PEM file."""
    try:
        made = ssl.create_default_context(cafile=ca)
    except OSError as error:
        message = f"the file {ca} of WINDLASS_CA cannot be used: {error.strerror or error}"
        raise failed("bad_ca", message, _CA_REMEDY) from None
    if ca:
        # Every certificate of the file is trusted, also one that another authority has signed.
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    return made


def explained(cause: ssl.SSLError, node: str, ca: Optional[str]) -> WindlassError:
    """The error of a handshake that failed. The next attempt would fail as well."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _certificate_refused(cause, node, ca)
    if cause.reason in _NOT_TLS:
        return failed(
            "wrong_scheme",
            f"the node at {node} speaks HTTP without TLS, and the URL begins with https://",
            f"use the URL http://{node}, or start the node with a certificate",
        )
    return failed(
        "tls_failed",
        f"the TLS handshake with the node at {node} failed: {cause.reason or cause}",
        "check that a node with a certificate listens there, and that both sides support TLS 1.2 or 1.3",
    )


def _certificate_refused(
    cause: ssl.SSLCertVerificationError, node: str, ca: Optional[str]
) -> WindlassError:
    code = cause.verify_code
    if code in _UNKNOWN_AUTHORITY:
        trusted = f"{ca} (WINDLASS_CA) names" if ca else "this machine trusts"
        why, remedy = f"is not from an authority that {trusted}", _CA_REMEDY
    elif code in _WRONG_NAME:
        why = "is for another name"
        remedy = "use a name of the certificate in the URL, or add this name to the node's certificate"
    elif code == _EXPIRED:
        why, remedy = "has expired", "renew the certificate of the node, then restart the node"
    elif code == _NOT_YET_VALID:
        why = "is not valid yet"
        remedy = "compare the clocks of this machine and of the node's machine"
    else:
        why = f"is not valid: {cause.verify_message}"
        remedy = "give the node a valid certificate, then restart the node"
    return failed("bad_certificate", f"the certificate of the node at {node} {why}", remedy)


class TlsSocket:
    """A connected socket in TLS, with the methods of `socket.socket` that the clients use.

    `ssl.SSLSocket` does not fit: it has no flags, and one thread must not read while another writes. Here no thread
    waits for the socket while it holds the state of TLS.
    """

    def __init__(self, sock: socket.socket, settings: ssl.SSLContext, host: str) -> None:
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = settings.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        #: Guards the state of TLS.
        self._state = threading.Lock()
        #: Held from encryption to sending: records must arrive in the order of their encryption.
        self._sending = threading.Lock()
        #: Encrypted bytes that were not sent yet.
        self._unsent = bytearray()

    def handshake(self, until: float) -> None:
        """Shakes hands until this time of the monotonic clock. The socket must be blocking or have a time limit."""
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError:
                # Tells the node why, if the connection still carries it.
                with suppress(OSError):
                    self._send_unsent(socket.MSG_DONTWAIT)
                raise
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("the node does not answer the TLS handshake")
            self._sock.settimeout(left)
            self._send_unsent(0)
            if done:
                self._sock.settimeout(None)
                return
            received = self._sock.recv(_READ_BYTES)
            if not received:
                raise ConnectionResetError("the connection ended during the TLS handshake")
            self._incoming.write(received)

    def fileno(self) -> int:
        return self._sock.fileno()

    def setsockopt(self, level: int, option: int, value: Union[int, bytes]) -> None:
        self._sock.setsockopt(level, option, value)

    def recv(self, count: int, flags: int = 0) -> bytes:
        """As of a socket: waits for the first byte only. If there is less than `count`, nothing is left to read."""
        found = bytearray()
        while len(found) < count:
            piece: Optional[bytes]
            with self._state:
                try:
                    piece = self._tls.read(min(count - len(found), _RECORD_BYTES))
                except ssl.SSLWantReadError:
                    piece = None  # A part of a record, or nothing.
                except ssl.SSLEOFError:
                    if found:
                        break
                    raise ConnectionResetError("the connection ended without the end of TLS") from None
            if piece == b"":
                break
            if piece:
                found += piece
                continue
            try:
                received = self._sock.recv(_READ_BYTES, flags | (socket.MSG_DONTWAIT if found else 0))
            except BlockingIOError:
                if found:
                    break
                raise
            with self._state:
                if received:
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()
        return bytes(found)

    def recv_into(self, buffer: memoryview, count: int = 0, flags: int = 0) -> int:
        found = self.recv(count or len(buffer), flags)
        buffer[: len(found)] = found
        return len(found)

    def send(self, data: Union[bytes, memoryview], flags: int = 0) -> int:
        """As of a socket, for short data: what the socket does not take now is sent before the next data."""
        with self._sending:
            self._encrypt(memoryview(data))
            self._send_unsent(flags)
        return len(data)

    def sendall(self, data: Union[bytes, bytearray, memoryview]) -> None:
        whole = memoryview(data)
        with self._sending:
            for start in range(0, len(whole), _WRITE_BYTES):
                self._encrypt(whole[start : start + _WRITE_BYTES])
                self._send_unsent(0)

    def sendmsg(self, parts: Iterable[Union[bytes, memoryview]]) -> int:
        whole = b"".join(parts)
        self.sendall(whole)
        return len(whole)

    def shutdown(self, how: int) -> None:
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()

    def _encrypt(self, data: memoryview) -> None:
        done = 0
        with self._state:
            while done < len(data):
                done += self._tls.write(data[done:])

    def _send_unsent(self, flags: int) -> None:
        """Sends what is encrypted: all of it, or with `MSG_DONTWAIT` what the socket takes."""
        with self._state:
            self._unsent += self._outgoing.read()
        while self._unsent:
            try:
                sent = self._sock.send(self._unsent, flags)
            except BlockingIOError:
                if flags & socket.MSG_DONTWAIT:
                    return
                raise  # The time limit of the socket.
            del self._unsent[:sent]
