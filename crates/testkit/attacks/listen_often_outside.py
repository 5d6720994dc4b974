# name: keep sessions from starting, or end the node, by 600 listening sockets of the same user
# line: 68
# finding: 6
# play: outside
import os

from attack import listen_at, wait_for_end

os.makedirs("many", exist_ok=True)
kept = listen_at(f"{os.getcwd()}/many/{number}-{'x' * 30}" for number in range(600))
print("planted: 600 sockets", flush=True)
wait_for_end()
