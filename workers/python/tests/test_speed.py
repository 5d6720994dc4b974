"""The cost of a turn and of a start, compared with the machine's own cost. Prints; asserts little.

A figure must hold in one of several tries: other load on the machine can slow down one half of a try.
"""

import os
import socket
import statistics
import subprocess
import time
import unittest

from keeper import PYTHON, Keeper, frame

TURNS = 2000
ECHO = "import sys, os\nwhile True:\n    d = os.read(0, 65536)\n    if not d: break\n    os.write(1, d)"
STARTS = 15
TRIES = 5
TIMES_MAX = 10


def percentiles(times):
    times.sort()
    return "p50 %.1f us, p95 %.1f us" % (
        statistics.median(times) * 1e6,
        times[int(len(times) * 0.95)] * 1e6,
    )


class Speed(unittest.TestCase):
    def check(self, what, measure):
        """Compare the medians of `measure`, which returns the times of the worker and bare times."""
        # Both pairs of processes, the worker's and the bare one, run on one processor. A pair that is spread over two
        # takes up to three times as long, and only one of the pairs might be spread.
        processors = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(processors)})
        self.addCleanup(os.sched_setaffinity, 0, processors)
        for _ in range(TRIES):
            own, bare = measure()
            print("\n%s: %s; bare: %s (n=%d)" % (what, percentiles(own), percentiles(bare), len(own)))
            times = statistics.median(own) / statistics.median(bare)
            if times < TIMES_MAX:
                return
        self.fail("%s takes %.1f times as long as the bare one, at most %d are good" % (what, times, TIMES_MAX))

    def test_a_warm_turn_costs_little_over_a_bare_loop(self):
        self.check("warm turn 1+1", self.warm_turns)

    def test_a_start_costs_little_over_a_bare_interpreter(self):
        self.check("start to ready", self.starts)

    def warm_turns(self):
        with Keeper() as keeper:
            keeper.run("1 + 1")
            keeper.socket.setblocking(True)
            turns, expected = [], None
            for turn in range(1_000_000, 1_000_000 + TURNS):
                message = frame({"kind": "turn_start", "turn": turn}, b"1+1")
                start = time.perf_counter()
                keeper.socket.sendall(message)
                data = keeper.socket.recv(65536)
                turns.append(time.perf_counter() - start)
                expected = expected or len(data)
                self.assertEqual(len(data), expected)
        return turns, self.bare_loop(message)

    def bare_loop(self, message):
        ours, theirs = socket.socketpair()
        with subprocess.Popen([PYTHON, "-c", ECHO], stdin=theirs, stdout=theirs) as process:
            theirs.close()
            times = []
            for _ in range(TURNS):
                start = time.perf_counter()
                ours.sendall(message)
                ours.recv(65536)
                times.append(time.perf_counter() - start)
            ours.close()
            process.wait()
        return times

    def starts(self):
        environment = {"PATH": "/usr/bin:/bin"}
        workers, bare = [], []
        for _ in range(STARTS):
            start = time.perf_counter()
            keeper = Keeper()
            workers.append(time.perf_counter() - start)
            keeper.close()
            start = time.perf_counter()
            process = subprocess.Popen(
                [PYTHON, "-u", "-c", "import os; os.write(1, b'x')"],
                stdout=subprocess.PIPE, env=environment, start_new_session=True,
            )
            os.read(process.stdout.fileno(), 1)
            bare.append(time.perf_counter() - start)
            process.wait()
            process.stdout.close()
        return workers, bare


if __name__ == "__main__":
    unittest.main()
