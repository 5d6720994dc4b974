"""The host side of the stage, outside of every sandbox: listeners, shared memory, queues, a terminal
and a process to attack. Prints their addresses as one JSON object. Answers each line on standard input
after it has recorded all contacts in the file that its first argument names. Exits with its input.

A line in that file means that a process reached the host."""

import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import termios

CONTACTS, HOME, BASE, SECRET = sys.argv[1:4] + [os.environ["STAGE_SECRET"]]
SIGNALS = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGURG, signal.SIGIO, signal.SIGTERM, signal.SIGHUP]
IPC_CREAT, IPC_RMID, KEY = 0o1000, 0, 0x57494E44 ^ os.getpid()
#: A session has fewer terminals than this.
TERMINAL_NUMBER_MIN = 16
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p


def contact(what):
    with open(CONTACTS, "a", encoding="utf-8") as file:
        file.write(what + "\n")


def listener(family, address, kind=socket.SOCK_STREAM):
    try:
        made = socket.socket(family, kind)
        made.bind(address)
        if kind == socket.SOCK_STREAM:
            made.listen(64)
        made.setblocking(False)
    except OSError:
        return None
    if family == socket.AF_UNIX and not address.startswith("\0"):
        os.chmod(address, 0o777)
    return made


def shared_memory():
    shm = libc.shmget(KEY, 4096, IPC_CREAT | 0o666)
    place = libc.shmat(shm, None, 0)
    ctypes.memmove(place, SECRET.encode(), len(SECRET))
    queue = libc.msgget(KEY, IPC_CREAT | 0o666)
    message = struct.pack("l", 1) + SECRET.encode()
    libc.msgsnd(queue, message, len(SECRET), 0)
    semaphore = libc.semget(KEY, 1, IPC_CREAT | 0o666)
    return shm, queue, semaphore


def posix_objects(name):
    posix = f"/dev/shm/{name}"
    with open(posix, "w", encoding="utf-8") as file:
        file.write(SECRET)
    os.chmod(posix, 0o666)
    librt = ctypes.CDLL("librt.so.1", use_errno=True)
    attributes = struct.pack("8l", 0, 4, 128, 0, 0, 0, 0, 0)
    queue = librt.mq_open(b"/" + name.encode(), os.O_CREAT | os.O_RDWR | os.O_NONBLOCK, 0o666, attributes)
    if queue >= 0:
        librt.mq_send(queue, SECRET.encode(), ctypes.c_size_t(len(SECRET)), 0)
    return posix, librt


def terminal():
    """A terminal with a number that no terminal of a session has. A session of the shell has terminals of its own, and
    one with the same path would take what is meant for this one."""
    leader, follower = os.openpty()
    while int(os.path.basename(os.ttyname(follower))) < TERMINAL_NUMBER_MIN:
        # Those with lower numbers stay open, so that the next has another one.
        leader, follower = os.openpty()
    settings = termios.tcgetattr(follower)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(follower, termios.TCSANOW, settings)
    os.set_blocking(leader, False)
    return leader, follower, os.ttyname(follower)


def main():
    name = f"windlass-stage-{os.getpid()}"
    os.chdir(HOME)
    loopback = "127.0.0.1"
    heard = {
        "tcp": listener(socket.AF_INET, (loopback, 0)),
        "tcp6": listener(socket.AF_INET6, ("::1", 0)),
        "udp": listener(socket.AF_INET, (loopback, 0), socket.SOCK_DGRAM),
        "abstract": listener(socket.AF_UNIX, "\0" + name),
        "abstract_datagram": listener(socket.AF_UNIX, "\0" + name + "-d", socket.SOCK_DGRAM),
        "socket_home": listener(socket.AF_UNIX, f"{HOME}/agent.sock"),
        "socket_home_datagram": listener(socket.AF_UNIX, f"{HOME}/log.sock", socket.SOCK_DGRAM),
        "socket_tmp": listener(socket.AF_UNIX, f"{BASE}/engine.sock"),
        "socket_run": listener(socket.AF_UNIX, f"/run/{name}.sock"),
        "socket_relative": listener(socket.AF_UNIX, "relative.sock"),
        "socket_renamed": listener(socket.AF_UNIX, f"{HOME}/before.sock"),
    }
    # As some services do: bind under another name, then rename it into place.
    os.rename(f"{HOME}/before.sock", f"{HOME}/renamed.sock")
    wakeup, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    for one in SIGNALS:
        signal.signal(one, lambda number, _: contact(f"signal {signal.Signals(number).name}"))
    ids = shared_memory()
    posix, librt = posix_objects(name)
    leader, follower, tty = terminal()
    names = {key: made.getsockname() for key, made in heard.items() if made}
    places = {
        "host_pid": os.getpid(),
        "tcp_port": names["tcp"][1],
        "tcp6_port": names["tcp6"][1] if "tcp6" in names else 0,
        "udp_port": names["udp"][1],
        "abstract": name,
        "abstract_datagram": name + "-d",
        "socket_home": names["socket_home"],
        "socket_home_datagram": names["socket_home_datagram"],
        "socket_tmp": names["socket_tmp"],
        "socket_run": names.get("socket_run", ""),
        "ipc_key": KEY,
        "shm_path": posix,
        "mq_name": "/" + name,
        "tty": tty,
    }
    print(json.dumps(places), flush=True)
    try:
        serve({made.fileno(): (key, made) for key, made in heard.items() if made}, leader, wakeup)
    finally:
        libc.shmctl(ids[0], IPC_RMID, None)
        libc.msgctl(ids[1], IPC_RMID, None)
        libc.semctl(ids[2], 0, IPC_RMID)
        librt.mq_unlink(b"/" + name.encode())
        os.close(follower)
        for path in [posix] + [at for at in names.values() if isinstance(at, str) and at.startswith("/")]:
            if os.path.exists(path):
                os.unlink(path)


def serve(heard, leader, wakeup):
    """Records contacts until standard input ends. Answers a line of input when no contact is pending."""
    watch = [*heard, leader, wakeup.fileno()]
    added = {}
    while True:
        ready, _, _ = select.select([0, *watch], [], [])
        while noted := select.select(watch, [], [], 0)[0]:
            for descriptor in noted:
                note(heard, descriptor, leader, wakeup)
        if 0 in ready:
            asked = os.read(0, 4096).decode().split()
            if not asked:
                return
            if asked[0] == "listen":
                listen_anew(heard, watch, added, asked[1])
            if asked[0] == "end":
                for path in [path for path in added if not path.startswith(asked[1] + "/")]:
                    end(heard, watch, added, path)
            print("noted", flush=True)


def listen_anew(heard, watch, added, path):
    """Adds a service at a path. An older service at that path ends."""
    end(heard, watch, added, path)
    if os.path.lexists(path):
        os.unlink(path)
    made = listener(socket.AF_UNIX, path)
    if made:
        added[path] = made.fileno()
        heard[made.fileno()] = (f"the service at {os.path.basename(path)}", made)
        watch.append(made.fileno())


def end(heard, watch, added, path):
    """Ends an added service. With too many services, the view of a session could not cover them all."""
    descriptor = added.pop(path, None)
    if descriptor is not None:
        watch.remove(descriptor)
        heard.pop(descriptor)[1].close()


def note(heard, descriptor, leader, wakeup):
    if descriptor == wakeup.fileno():
        wakeup.recv(64)
    elif descriptor == leader:
        contact(f"terminal got {os.read(leader, 64)!r}")
    else:
        key, made = heard[descriptor]
        if made.type == socket.SOCK_DGRAM:
            data, sender = made.recvfrom(2048)
            contact(f"{key} got {len(data)} bytes")
            answer(lambda: made.sendto(SECRET.encode(), sender))
        else:
            peer, _ = made.accept()
            contact(f"{key} was connected to")
            answer(lambda: peer.sendall(SECRET.encode()))
            peer.close()


def answer(act):
    try:
        act()
    except (OSError, TypeError):
        pass


main()
