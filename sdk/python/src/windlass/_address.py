"""The address of a node: its unix socket or its TCP door. Owns the headers that each request needs
there, TLS with it, and whether a node may be started."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import Optional
from urllib.parse import urlsplit

from . import _tls
from ._calls import Again, Failure
from ._dirs import Dirs, parse_token, read_token
from ._errors import BadRequest, WindlassError, failed
from ._start import ensure_node, find_program

#: How long a TCP connect may take, and the TLS handshake with it, in seconds.
CONNECT_WAIT = 10.0


@dataclass(frozen=True)
class Address:
    """One node. Exactly one of `dirs` and `host` is given."""

    dirs: Optional[Dirs] = None
    host: str = ""
    port: int = 0
    token: str = field(default="", repr=False)
    #: The settings of TLS for an `https` URL, and the PEM file of the only trusted authorities.
    tls: Optional[ssl.SSLContext] = field(default=None, repr=False)
    ca: Optional[str] = None
    #: The program that starts an absent node; None if none was found.
    program: Optional[str] = None
    may_start: bool = False

    @property
    def socket(self) -> Optional[str]:
        """The path of the node's unix socket."""
        return str(self.dirs.socket) if self.dirs else None

    @property
    def introduction(self) -> tuple[tuple[str, str], ...]:
        if self.dirs:
            return (("host", "windlass"),)
        return (("host", self._authority), ("authorization", f"Bearer {self.token}"))

    def __str__(self) -> str:
        return self.socket or self._authority

    @property
    def _authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def reach(self, cause: OSError) -> None:
        """Starts the node after a refused connection, if that is allowed. Blocks."""
        absent = isinstance(cause, (FileNotFoundError, ConnectionRefusedError))
        if not absent or not self.may_start or self.dirs is None:
            raise self.unreachable(cause)
        try:
            ensure_node(self.dirs, self.program)
        except WindlassError as error:
            raise Failure(error, Again.NEVER) from None

    def unreachable(self, cause: OSError) -> Failure:
        if isinstance(cause, ssl.SSLError):
            return Failure(_tls.explained(cause, str(self), self.ca), Again.NEVER)
        message = f"no node answers at {self}: {cause.strerror or cause}"
        error = failed("unreachable", message, "start a node with: windlass up")
        return Failure(error, Again.SAFE)


def find(
    url: Optional[str], token: Optional[str], start: bool, ca: Optional[str] = None
) -> Address:
    """The node that the arguments name, or the environment, or the user's own node."""
    url = url or os.environ.get("WINDLASS_URL")
    if not url:
        return Address(Dirs.from_env(), program=find_program(), may_start=start)
    token = token or os.environ.get("WINDLASS_TOKEN")
    known = parse_token(token) if token else read_token(Dirs.from_env().token)
    host, port, secure = _parts(url)
    if not secure:
        return Address(host=host, port=port, token=known)
    ca = ca or os.environ.get("WINDLASS_CA") or None
    return Address(host=host, port=port, token=known, tls=_tls.context(ca), ca=ca)


def _parts(url: str) -> tuple[str, int, bool]:
    """Host and port of a plain URL, and whether it is `https`. An error never repeats the URL: it may hold a secret."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https")
        plain = known and parts.path in ("", "/") and not parts.query
        if plain and parts.hostname and "@" not in parts.netloc:
            secure = parts.scheme == "https"
            return parts.hostname, parts.port or (443 if secure else 80), secure
    except ValueError:
        pass
    raise BadRequest(
        "bad_url",
        "the node's address is not a plain URL such as http://127.0.0.1:8040 or https://node.example:8040",
        "give the URL that `windlass status` prints on the node's machine",
    )


