# name: look into the twin's descriptors from a child that the original had before the fork
# line: 71
# finding: 10
# play: fork
# named: process
# runs: in the worker
import builtins
import os

from attack import STAGE, error_name, planted, refused, through

if STAGE["part"] == "plant":
    to_child, from_child = os.pipe(), os.pipe()
    if os.fork() == 0:
        numbers = os.read(to_child[0], 4096).decode().split()
        got = "refused: nothing"
        for pid in map(int, numbers):
            try:
                if found := os.readlink(f"/proc/{pid}/fd/0"):
                    got = f"through: {found}"
            except OSError as error:
                got = got if got.startswith("through") else f"refused: {error_name(error)}"
        os.write(from_child[1], got.encode())
        os._exit(0)
    builtins.windlass_pipes = to_child[1], from_child[0]
    planted("a child")
tell, hear = builtins.windlass_pipes
os.write(tell, " ".join(map(str, STAGE["twin_numbers"] or [-1])).encode())
kind, _, what = os.read(hear, 4096).decode().partition(": ")
through(what) if kind == "through" else refused(what)
