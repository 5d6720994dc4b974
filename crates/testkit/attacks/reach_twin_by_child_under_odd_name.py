# name: look into the twin from a child that the original had before the fork and whose name is not UTF-8
# line: 71
# play: fork
# named: process
# runs: in the worker
import builtins
import os

from attack import STAGE, error_name, planted, refused, secret_in_memory, set_process_name, through


def look(pid):
    """The secret in the memory of a process, or what its standard input is."""
    try:
        if found := secret_in_memory(pid):
            return found
    except OSError:
        pass
    return os.readlink(f"/proc/{pid}/fd/0")


if STAGE["part"] == "plant":
    to_child, from_child = os.pipe(), os.pipe()
    if os.fork() == 0:
        set_process_name(b"\xff\xfeodd")
        os.write(from_child[1], b"x")
        numbers = os.read(to_child[0], 4096).decode().split()
        got = "refused: nothing"
        for pid in map(int, numbers):
            try:
                got = f"through: {look(pid)}"
            except OSError as error:
                got = got if got.startswith("through") else f"refused: {error_name(error)}"
        os.write(from_child[1], got.encode())
        os._exit(0)
    # Fork after the name was changed.
    os.read(from_child[0], 1)
    builtins.windlass_pipes = to_child[1], from_child[0]
    planted("a child")
tell, hear = builtins.windlass_pipes
os.write(tell, " ".join(map(str, STAGE["twin_numbers"] or [-1])).encode())
kind, _, what = os.read(hear, 4096).decode().partition(": ")
through(what) if kind == "through" else refused(what)
