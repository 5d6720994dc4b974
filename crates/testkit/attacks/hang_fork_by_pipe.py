# name: have a fork wait for ever: files become pipes while it copies
# line: 66
# play: fork
# forks: 2
# runs: in the worker
import os

from attack import STAGE, exchange, in_background, planted, refused

FILES = 40


def plant():
    os.makedirs("pipes", exist_ok=True)
    os.makedirs("files", exist_ok=True)
    for number in range(FILES):
        os.mkfifo(f"pipes/p{number}")
        with open(f"files/f{number}", "w", encoding="utf-8") as file:
            file.write("x")

    def swap_all():
        for number in range(FILES):
            exchange(f"pipes/p{number}", f"files/f{number}")

    in_background(swap_all)
    planted("files that are pipes every other moment")


plant() if STAGE["part"] == "plant" else refused("the fork has ended")
