"""HTTP requests, name lookups and programs, run by the client that serves them for this session.

Owns the host calls `host.http`, `host.lookup` and `host.run`, and the parts of `socket` and `os` that
make them. Without a client that serves them, each raises PermissionError.
"""

import os
import socket
import subprocess

from ..catalogue import running_loop
from ..hooks import Hooks
from ..plain_json import encoded
from ..tool_errors import CLASSES
from ..wire import quoted

_HEADER = b'{"kind":"tool_call","turn":%%d,"call":%%d,"name":%b'


class HostCalls:
    def __init__(self, calls):
        # A function: the calls are set up at their first use.
        self._calls = calls

    def call(self, tool, arguments, what, deadline_s=None):
        """Call and wait. `what` says in an error what was refused."""
        try:
            return self._calls().call(_header(tool, deadline_s), tool, encoded(arguments))
        except CLASSES["ToolError"] as error:
            raise _as_builtin(error, what) from None

    async def call_later(self, tool, arguments, what, deadline_s=None):
        """The same in async code, several at once."""
        body = encoded(arguments)
        try:
            return await self._calls().start(running_loop(), _header(tool, deadline_s), tool, body)
        except CLASSES["ToolError"] as error:
            raise _as_builtin(error, what) from None


def install(calls):
    """Replace what would need the system. Returns modules that stand in for those of Pyodide."""
    from . import programs, requests

    host = HostCalls(calls)
    programs.install(host, subprocess, os)
    _install_lookups(host)
    Hooks({"urllib.request": lambda module: requests.install(host, module)}).install()
    return requests.pyodide_http(host)


def _header(tool, deadline_s):
    header = _HEADER % quoted(tool)
    if deadline_s is not None:
        header += b',"deadline_ms":%d' % max(1, int(deadline_s * 1000))
    return header


def _as_builtin(error, what):
    """The error of a call as the code expects it from the system."""
    if error.code == "tool_not_found":
        return PermissionError("%s is refused: no client serves %s" % (what, error.tool))
    if error.code == "tool_deadline_passed":
        return TimeoutError("%s was not answered in time: %s" % (what, error))
    if error.type == "PermissionError":
        return PermissionError("%s is refused: %s" % (what, error))
    if error.type in ("TimeoutError", "FileNotFoundError"):
        return {"TimeoutError": TimeoutError, "FileNotFoundError": FileNotFoundError}[error.type](str(error))
    return OSError("%s failed: %s" % (what, error))


def _install_lookups(host):
    def addresses(name):
        answer = host.call("host.lookup", {"name": name}, "the lookup of %s" % name)
        found = answer.get("addresses") if isinstance(answer, dict) else None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise OSError("the lookup of %s failed: the answer has an unknown form" % name)
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found

    def getaddrinfo(host, port, family=0, type=0, proto=0, flags=0):
        """The addresses of a name, from the client that serves lookups."""
        name = host.decode() if isinstance(host, bytes) else host or "localhost"
        number = int(port) if port is not None and str(port).isdigit() else 0
        kind = type or socket.SOCK_STREAM
        answers = []
        for address in addresses(name):
            is_v6 = ":" in address
            own = socket.AF_INET6 if is_v6 else socket.AF_INET
            if family in (0, own):
                end = (address, number, 0, 0) if is_v6 else (address, number)
                answers.append((socket.AddressFamily(own), socket.SocketKind(kind), proto or 6, "", end))
        if not answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return answers

    def gethostbyname(name):
        return getaddrinfo(name, None, socket.AF_INET)[0][4][0]

    def connect(_socket, address):
        raise PermissionError("a connection to %r is refused: a session has no sockets" % (address,))

    socket.getaddrinfo = getaddrinfo
    socket.gethostbyname = gethostbyname
    socket.socket.connect = socket.socket.connect_ex = socket.socket.bind = connect
