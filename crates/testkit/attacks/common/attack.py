"""Common code of the attacks in Python: access to the stage, and the result lines."""

import builtins
import errno
import json
import os
import re
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "stage.json"), encoding="utf-8") as file:
    STAGE = json.load(file)

# The pattern of every secret. Programs contain only the pattern, never a secret.
CANARY = re.compile(rb"windlass-canary-[0-9a-f]{16}")

# Size of one read.
BYTES_MAX = 4 * 1024 * 1024


def refused(by):
    print("refused:", by, flush=True)
    raise SystemExit(0)


def through(what):
    print("through:", what, flush=True)
    raise SystemExit(0)


def planted(what):
    """Ends the first part. The stage continues, and then runs the part `look`."""
    print("planted:", what, flush=True)
    raise SystemExit(0)


def wait_for_end():
    """Keeps an outside program running until the stage closes its input."""
    import sys

    sys.stdin.read()


def error_name(error):
    if isinstance(error, OSError) and error.errno:
        return errno.errorcode.get(error.errno, str(error.errno))
    return type(error).__name__


def try_each(tries):
    """Runs every try, a name and a function. The first try that returns a value succeeds. The errors
    of the others name what refused them."""
    by = {}
    for name, act in tries:
        try:
            got = act()
        except (OSError, ValueError) as error:
            by.setdefault(error_name(error), []).append(name)
        else:
            if got:
                through(f"{name}: {got}")
            by.setdefault("nothing there", []).append(name)
    if not by:
        refused("nothing to try")
    some = (f"{error} on {', '.join(names[:3])}{' ...' if names[3:] else ''}" for error, names in by.items())
    refused("; ".join(some))


def canary_in(data):
    """The secret in the bytes, as text, or None."""
    found = CANARY.search(data)
    return found and found.group().decode()


def read(path, **options):
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK, **options)
    try:
        return os.read(descriptor, BYTES_MAX)
    finally:
        os.close(descriptor)


def secret_at(path, **options):
    return canary_in(read(path, **options))


def append(path, text="# windlass-attack\n"):
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    return f"wrote {path}"


def opened_to_write(path):
    """Opens for writing and writes nothing, so a success is harmless."""
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY))
    return f"opened {path} for writing"


def can_make_in(directory):
    """Creates a file without a name in the directory. It vanishes when it is closed."""
    os.close(os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600))
    return f"made a file in {directory}"


def processes():
    """The processes that can be listed. If none can, those with known pids."""
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        known = {value for key, value in STAGE.items() if key.endswith(("_pid", "_number"))}
        return [str(pid) for pid in sorted(known | set(range(1, 33)))]


def below(directory):
    """Every file below that can be listed. An error at the top is raised to the caller."""
    os.listdir(directory)
    return [os.path.join(place, name) for place, _, names in os.walk(directory) for name in names]


def ask_node(method, target, body=b"", headers=()):
    """Sends one request to the node as a client does, and returns the status line."""
    import socket

    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(15)
        one.connect(STAGE["node_socket"])
        head = [f"{method} {target} HTTP/1.1", "host: windlass", "windlass-api: 1.0", "connection: close",
                "content-type: application/json", f"content-length: {len(body)}", *headers]
        one.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        answer = b""
        while part := one.recv(65536):
            answer += part
        return answer.split(b"\r\n", 1)[0].decode() or "no answer"


def planted_or_ended(requests):
    """Sends every request. The stage checks whether the node survives."""
    answers = []
    for name, act in requests:
        try:
            answers.append(f"{name}: {act()}")
        except OSError as error:
            answers.append(f"{name}: {error_name(error)}")
    refused("; ".join(answers)[:300])


def listen_at(paths):
    """Listens at each path, and returns the sockets."""
    import resource
    import socket

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    made = []
    for path in paths:
        one = socket.socket(socket.AF_UNIX)
        one.bind(path)
        one.listen(1)
        made.append(one)
    return made


def say_to_keeper(*frames):
    """Writes frames, each a header as bytes and a body, to the protocol socket of this worker, and waits
    for the reaction of the keeper. Only for programs that run in the worker."""
    import socket
    import stat
    import struct

    message = b"".join(struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body for head, body in frames)
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        number = int(name)
        try:
            if number < 3 or not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            one = socket.socket(fileno=os.dup(number))
            if one.family == socket.AF_UNIX and one.type == socket.SOCK_STREAM:
                one.setblocking(True)
                one.sendall(message)
        except OSError:
            continue
    # If the keeper crashes, this process ends. Otherwise the keeper answers with the end of the turn.
    time.sleep(1)


def padded(start, end, size=65536):
    """A header of exactly this many bytes: `start`, as many letters as fit, `end`."""
    return start + b"x" * (size - len(start) - len(end)) + end


def secret_in_memory(pid):
    """Searches the memory of a process for the secret, through /proc."""
    maps = read(f"/proc/{pid}/maps").decode()
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        for line in maps.splitlines():
            span, rights, *_ = line.split()
            start, end = (int(number, 16) for number in span.split("-"))
            if not rights.startswith("rw") or end - start > 256 << 20:
                continue
            try:
                if found := canary_in(os.pread(memory, end - start, start)):
                    return found
            except OSError:
                continue
    finally:
        os.close(memory)


RENAME_EXCHANGE = 2


def exchange(left, right):
    """Swaps two names in one step."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(left), -100, os.fsencode(right), RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def in_background(act):
    """Runs `act` repeatedly in a thread that outlives the turn. Errors are ignored."""
    # `exchange` needs it. An import in the thread would race with the runner, which takes the attack's directory
    # off `sys.path`: the import then passes over an entry of the path, and finds nothing.
    import ctypes  # noqa: F401

    def loop():
        while True:
            try:
                act()
            except OSError:
                pass

    threading.Thread(target=loop, daemon=True).start()


def own_directory(name):
    """A fresh directory in the workspace."""
    import tempfile

    return tempfile.mkdtemp(prefix=name + "-", dir=os.getcwd())


def by_thread_from_before(act):
    """Plants a thread before a fork, which afterwards tries `act` on each process of the twin. Both parts
    run in the original's interpreter; the builtins hold what they share."""
    if STAGE["part"] == "plant":
        builtins.windlass_box = {}
        threading.Thread(target=_try_each, args=(act, builtins.windlass_box), daemon=True).start()
        planted("a thread")
    box = builtins.windlass_box
    box["numbers"] = STAGE["twin_numbers"] or [-1]
    for _ in range(1000):
        if box.get("done"):
            break
        time.sleep(0.01)
    if box.get("got"):
        through(box["got"])
    refused(box.get("error", "nothing"))


def _try_each(act, box):
    while not box.get("numbers"):
        time.sleep(0.01)
    for pid in box["numbers"]:
        try:
            box["got"] = act(pid) or box.get("got")
        except OSError as error:
            box["error"] = error_name(error)
    box["done"] = True


PR_SET_NAME = 15


def set_process_name(name):
    """Gives this thread a name, as bytes. The name of the first thread is the name of the process."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


# A child that sets its own name, reports that, and keeps running.
STAYS = """
import ctypes, signal, sys
ctypes.CDLL(None).prctl(15, ctypes.c_char_p(bytes.fromhex(sys.argv[1])), 0, 0, 0)
print("named", flush=True)
signal.pause()
"""


def start_marked_child(name):
    """Starts a child of this process that has `name`, as bytes, and the mark by which the stage knows
    what a twin started. Only for programs that run in the worker."""
    import subprocess
    import sys

    child = subprocess.Popen([sys.executable, "-c", STAYS, name.hex(), STAGE["mark"]],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    child.stdout.readline()
    # Keep a reference: Python warns about a running child that no variable refers to.
    builtins.windlass_child = child


def hold_memory_in_many(limit, name=None, looked_s=0):
    """Whether many processes that each hold a quarter of `limit` together hold more than `limit`.
    They get `name` if one is given; `looked_s` is how long they hold the memory at least."""
    import signal

    each, processes = limit // 4, 10
    told, tell = os.pipe()
    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            try:
                if name:
                    set_process_name(name)
                block = bytearray(os.urandom(4096) * (each // 4096))
                os.write(tell, b"x")
                os.close(tell)
                signal.pause()
            finally:
                os._exit(1)
        children.append(child)
    os.close(tell)
    # End of file on the pipe: each child has its memory or was killed before.
    while os.read(told, processes):
        pass
    time.sleep(looked_s)
    alive = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
    for child in alive:
        os.kill(child, signal.SIGKILL)
    held = len(alive) * each
    if held > limit:
        through(f"{len(alive)} processes hold {held >> 20} MiB")
    refused(f"{len(alive)} of {processes} processes were left, with {held >> 20} MiB")
