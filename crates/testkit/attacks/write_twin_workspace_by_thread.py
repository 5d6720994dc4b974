# name: change the twin's files from a thread that the original had before the fork
# line: 71
# finding: 10
# play: fork
# named: thread
# runs: in the worker
import builtins
import os
import threading
import time

from attack import STAGE, error_name, planted, refused, through


def work():
    box = builtins.windlass_box
    while "path" not in box:
        time.sleep(0.01)
    try:
        with open(box["path"], "w", encoding="utf-8") as file:
            file.write("x")
        box["got"] = box["path"]
    except OSError as error:
        box["error"] = error_name(error)


if STAGE["part"] == "plant":
    builtins.windlass_box = {}
    builtins.windlass_thread = threading.Thread(target=work, daemon=True)
    builtins.windlass_thread.start()
    planted("a thread")
builtins.windlass_box["path"] = os.path.join(STAGE["twin_workspace"], "from-the-original")
builtins.windlass_thread.join(10)
box = builtins.windlass_box
if "got" in box:
    through(f"wrote {box['got']}")
refused(box.get("error", "nothing"))
