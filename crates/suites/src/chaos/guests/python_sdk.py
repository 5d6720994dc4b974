"""A guest of the chaos suite: counts in sessions through the Python SDK and prints one JSON object per line.
The second argument is the kind of the sessions' workers. It ends when its standard input is closed."""

import json
import random
import sys
import threading
import time

from windlass import Windlass, WindlassError

TURNS_PER_SESSION = 60

# Pauses between two turns and after a failure, so that the other clients get CPU time.
PAUSE_S = 0.05
FAILURE_PAUSE_S = 0.2

# Code that counts and prints the count, and code that takes a while, so that a fault meets it.
PYTHON = ("n = globals().get('n', 0) + 1\nprint(n)", "import time; time.sleep(0.3)")
PROGRAMS = {
    "python": PYTHON,
    "jupyter": PYTHON,
    "shell": ("n=$((n + 1)); echo $n", "sleep 0.3"),
    "r": ("n <- if (exists('n')) n + 1 else 1; cat(n)", "Sys.sleep(0.3)"),
    "node": (
        "var n = (globalThis.n ?? 0) + 1; console.log(n)",
        "await new Promise((done) => setTimeout(done, 300))",
    ),
}

# One turn of this many takes a while.
SLOW_ONE_OF = 20


def tell(**what):
    print(json.dumps(what), flush=True)


class Counter:
    """A count in a session. A request without an answer may have run, so the expected count is a range."""

    def __init__(self, session, programs, choices):
        self.session = session
        self.count, self.wait = programs
        self.choices = choices
        self.low = self.high = 0

    def turn(self):
        is_slow = self.choices.randrange(SLOW_ONE_OF) == 0
        try:
            turn = self.session.run(self.count + "\n" + self.wait if is_slow else self.count)
        except WindlassError as error:
            self.high += 1
            tell(raised=error.code, text=str(error))
            time.sleep(FAILURE_PAUSE_S)
            return error.code != "session_ended"
        tell(turn=turn.outcome, code=turn.error.code if turn.error else None, id=turn.id)
        if turn.outcome != "ok":
            self.low, self.high = 0, self.high + 1
            return True
        count = int(turn.output)
        if not self.low < count <= self.high + 1:
            tell(violation=f"{turn.id}: counted {count}, last count: {self.low} to {self.high}")
        self.low = self.high = count
        return True


def connect(over):
    """Connects as soon as a node answers. After each kill there is no node for a moment."""
    while not over.is_set():
        try:
            return Windlass(start=False)
        except WindlassError as error:
            tell(raised=error.code, text=str(error))
            time.sleep(FAILURE_PAUSE_S)
    sys.exit(0)


def play(choices, over, worker):
    node = connect(over)
    while not over.is_set():
        try:
            session = node.session(worker=worker)
        except WindlassError as error:
            tell(raised=error.code, text=str(error))
            time.sleep(FAILURE_PAUSE_S)
            continue
        counter = Counter(session, PROGRAMS[worker.partition(":")[0]], choices)
        for _ in range(choices.randrange(1, TURNS_PER_SESSION)):
            if over.is_set() or not counter.turn():
                break
            time.sleep(choices.random() * PAUSE_S)
        try:
            session.close()
        except WindlassError as error:
            tell(raised=error.code, text=str(error))


def main():
    over = threading.Event()

    def listen():
        sys.stdin.read()
        over.set()

    threading.Thread(target=listen, daemon=True).start()
    play(random.Random(sys.argv[1] + sys.argv[2]), over, sys.argv[2])


main()
