# name: have the node read, write and remove hidden files for a client, by a directory that becomes a link
# line: 66
# play: files
# runs: in the worker
import os

from attack import STAGE, exchange, in_background, planted, refused

if STAGE["part"] == "plant":
    os.makedirs("swap", exist_ok=True)
    for name in ("id_rsa", "authorized_keys"):
        with open(f"swap/{name}", "w", encoding="utf-8") as file:
            file.write("mine")
    os.symlink(f"{STAGE['home']}/.ssh", "swapped")
    in_background(lambda: exchange("swap", "swapped"))
    planted("a directory that is a link every other moment")
refused("it looks at nothing itself")
