# name: keep sessions from starting by a socket in a private directory of another user
# line: 72
# finding: 7
# needs: root
# play: outside, as another user
import os

from attack import STAGE, listen_at, wait_for_end

os.chdir(STAGE["other"])
os.makedirs("private/deeper", mode=0o700)
kept = listen_at([f"{os.getcwd()}/private/agent", f"{os.getcwd()}/private/deeper/agent"])
os.chmod("private", 0o700)
print("planted: sockets of user", os.getuid(), flush=True)
wait_for_end()
