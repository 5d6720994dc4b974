# name: keep sessions from starting by 500 listening sockets of another user
# line: 72
# finding: 6
# needs: root
# play: outside, as another user
import os

from attack import STAGE, listen_at, wait_for_end

os.chdir(STAGE["other"])
os.chmod(".", 0o755)
kept = listen_at(f"{os.getcwd()}/{number}-{'x' * 40}" for number in range(500))
print("planted: sockets of user", os.getuid(), flush=True)
wait_for_end()
