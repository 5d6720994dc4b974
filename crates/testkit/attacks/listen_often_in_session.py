# name: end the node by listening on 600 sockets in a session, while another starts
# line: 68
# finding: 6
# play: beside
# runs: in the worker
import builtins
import os

from attack import STAGE, listen_at, planted, refused

if STAGE["part"] == "plant":
    os.makedirs("many", exist_ok=True)
    try:
        # The sockets stay open as long as the worker.
        builtins.windlass_listening = listen_at(f"{os.getcwd()}/many/{number}-{'x' * 30}" for number in range(600))
    except OSError as error:
        refused(error.strerror)
    planted("600 sockets")
refused("another session starts")
