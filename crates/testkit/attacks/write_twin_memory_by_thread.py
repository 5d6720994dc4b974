# name: open the twin's memory for writing from a thread that the original had before the fork
# line: 71
# finding: 10
# play: fork
# named: thread
# runs: in the worker
import builtins
import threading
import time

from attack import STAGE, error_name, opened_to_write, planted, refused, through


def act(pid):
    return opened_to_write(f"/proc/{pid}/mem")


def work():
    """Waits for the numbers of the twin, and tries each."""
    box = builtins.windlass_box
    while not box.get("numbers"):
        time.sleep(0.01)
    for pid in box["numbers"]:
        try:
            box["got"] = act(pid) or box.get("got")
        except OSError as error:
            box["error"] = error_name(error)
    box["done"] = True


if STAGE["part"] == "plant":
    builtins.windlass_box = {}
    threading.Thread(target=work, daemon=True).start()
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
