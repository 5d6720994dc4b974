"""The keeper of the Python worker's tests, with a Node worker. `WORKER_NODE` names the program of Node.js."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MAIN = os.path.join(os.path.dirname(HERE), "main.js")
sys.path.append(os.path.join(os.path.dirname(os.path.dirname(HERE)), "python", "tests"))

import keeper  # noqa: E402
from keeper import Told, frame  # noqa: E402, F401

NODE = os.environ.get("WORKER_NODE", "node")
FLAGS = ["--no-force-async-hooks-checks"]


class Keeper(keeper.Keeper):
    def __init__(self, main=MAIN, **options):
        super().__init__(command=[NODE, *FLAGS, main], **options)
