"""The two directories that a node and its clients share, and the token of its TCP door.

Owns where they are, and checks that only their user can write to them. Never reads a node's files.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Optional

from ._errors import StartFailed, Unauthorized, WindlassError

#: The longest path of a unix socket.
SOCKET_PATH_BYTES_MAX = 107

_SET_THEM = "set WINDLASS_RUNTIME_DIR and WINDLASS_STATE_DIR to directories of your own"
_TOKEN = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class Dirs:
    """The directories of one node."""

    #: Sockets and locks; may vanish at a reboot.
    runtime: Path
    #: Journal, log and token; survives a reboot.
    state: Path

    @staticmethod
    def from_env(env: Optional[Mapping[str, str]] = None) -> Dirs:
        """The directories that the environment names, made and checked."""
        uid = os.geteuid()
        runtime, state = _choose(os.environ if env is None else env, uid)
        dirs = Dirs(_own(runtime, uid), _own(state, uid))
        length = len(os.fsencode(dirs.socket))
        if length > SOCKET_PATH_BYTES_MAX:
            raise _bad(
                f"the socket path {dirs.socket} is {length} bytes long; "
                f"a unix socket holds {SOCKET_PATH_BYTES_MAX}",
                "set WINDLASS_RUNTIME_DIR to a shorter path",
            )
        return dirs

    @property
    def socket(self) -> Path:
        return self.runtime / "node.sock"

    @property
    def start_lock(self) -> Path:
        return self.runtime / "start.lock"

    @property
    def token(self) -> Path:
        return self.state / "token"

    @property
    def log(self) -> Path:
        return self.state / "node.log"


def parse_token(text: str) -> str:
    """Checks a token that the caller passed. An error does not repeat it."""
    text = text.strip()
    if not _TOKEN.fullmatch(text):
        raise Unauthorized(
            "bad_token",
            "the node's token is malformed: a token has 64 hexadecimal digits",
            "set WINDLASS_TOKEN to what `windlass token` prints",
        )
    return text


def read_token(path: Path) -> str:
    """The token of the user's own node, from a file that only the user may access."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            about = os.fstat(file.fileno())
            text = file.read(4096)
    except OSError as error:
        raise Unauthorized(
            "bad_token",
            f"cannot read the token file {path}: {error.strerror}",
            "set WINDLASS_TOKEN to what `windlass token` prints",
        ) from None
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise Unauthorized(
            "bad_token",
            f"other users have access to the token file {path}",
            "make a new one with: windlass token --rotate",
        )
    return parse_token(text)


def _choose(env: Mapping[str, str], uid: int) -> tuple[Path, Path]:
    """The runtime and the state directory. Without XDG_RUNTIME_DIR, this function tries the
    conventional `/run/user/UID` before `/tmp`, so that programs with only a few variables reach the
    same node as all others."""
    usual = f"/run/user/{uid}"
    base = env.get("XDG_RUNTIME_DIR") or (usual if _is_own(usual, uid) else "")
    runtime = env.get("WINDLASS_RUNTIME_DIR") or (
        f"{base}/windlass" if base else f"/tmp/windlass-{uid}"
    )
    home = env.get("HOME")
    state = env.get("WINDLASS_STATE_DIR")
    if not state and env.get("XDG_STATE_HOME"):
        state = f"{env['XDG_STATE_HOME']}/windlass"
    if not state and home:
        state = f"{home}/.local/state/windlass"
    if not state:
        raise _bad(
            "no state directory: neither XDG_STATE_HOME nor HOME is set",
            "set HOME or WINDLASS_STATE_DIR",
        )
    return Path(runtime), Path(state)


def _is_own(path: str, uid: int) -> bool:
    try:
        about = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(about.st_mode) and about.st_uid == uid


def _own(path: Path, uid: int) -> Path:
    """Creates `path` with access for its user only, or checks an existing one."""
    # A node that is started from here runs in another directory, where a relative path means
    # another path.
    path = Path(os.path.abspath(path))
    try:
        for directory in [*reversed(path.parents), path]:
            if not directory.exists():
                directory.mkdir(mode=0o700, exist_ok=True)
        # Check the symlink as well as its target: in a shared /tmp another user's symlink may lead
        # anywhere.
        link, target = os.lstat(path), os.stat(path)
    except OSError as error:
        raise _bad(f"cannot create the directory {path}: {error.strerror}", _SET_THEM) from None
    if not stat.S_ISDIR(target.st_mode):
        raise _bad(f"{path} is not a directory", f"remove {path}, or {_SET_THEM}")
    for owner in (link.st_uid, target.st_uid):
        if owner != uid:
            raise _bad(f"{path} belongs to user {owner}, not to you (user {uid})", _SET_THEM)
    mode = target.st_mode & 0o777
    if mode & 0o022:
        raise _bad(f"{path} can be written by others (mode {mode:o})", f"run: chmod 700 {path}")
    return path


def _bad(message: str, remedy: str) -> WindlassError:
    return StartFailed("bad_directory", message, remedy)
