# name: read, signal and change the original from its twin
# line: 71
# finding: 10
# play: fork, look in the twin
# runs: in the worker
import os

from attack import STAGE, opened_to_write, planted, secret_in_memory, try_each

if STAGE["part"] == "plant":
    os.environ["WINDLASS_ORIGINAL"] = str(os.getpid())
    planted("its own number")
original = int(os.environ["WINDLASS_ORIGINAL"])


def signalled():
    os.kill(original, 0)
    return f"{original} can be signalled"


def written():
    path = os.path.join(STAGE["original_workspace"], "from-the-twin")
    with open(path, "w", encoding="utf-8") as file:
        file.write("x")
    return path


try_each([("memory", lambda: secret_in_memory(original) or opened_to_write(f"/proc/{original}/mem")),
          ("descriptors", lambda: os.readlink(f"/proc/{original}/fd/0")),
          ("signal", signalled), ("workspace", written)])
