"""Tools in threads: each thread gets its own answer, whichever thread reads, and no call outlives
its turn."""

import os
import tempfile
import unittest

from host import WithHost

MANY = (
    "import threading\n"
    "found, failed = {}, {}\n"
    "def work(i):\n"
    "    try: found[i] = tools.wait(value=i)\n"
    "    except tools.ToolError as e: failed[i] = e.code\n"
    "def started(n):\n"
    "    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n)]\n"
    "    for t in threads: t.start()\n"
    "    return threads\n"
    "def join(threads):\n"
    "    for t in threads: t.join()\n"
)


class WithThreads(WithHost):
    def setUp(self):
        super().setUp()
        self.run_code(MANY + "tools.wait, tools.echo")

    def start(self, code, calls):
        """Start a turn, and return its unanswered calls."""
        before = len(self.host.calls)
        self.keeper.start(code)
        return [call for _, _, call in self.host.until_called(before + calls)[before:]]

    def answer_all(self, backwards=False):
        for _, arguments, call in self.host.calls[::-1] if backwards else self.host.calls:
            self.host.answer(call, arguments.get("value"))
        self.host.calls.clear()


class Waiting(WithThreads):
    def test_38_threads_while_the_main_one_joins_them(self):
        for backwards in (False, True):
            self.start("found.clear()\njoin(started(38))\nfound == {i: i for i in range(38)}", 38)
            self.answer_all(backwards)
            self.assertEqual(self.keeper.until("idle").result, "True\n")

    def test_threads_while_the_main_one_asks_for_input(self):
        self.start("t = started(12)\nline = input('? ')\njoin(t)\nline, len(found)", 12)
        self.keeper.until("stdin_wait")
        for _, _, call in self.host.calls[::2]:
            self.host.answer(call, "answered")
        self.keeper.answer(b"typed\n")
        for _, _, call in self.host.calls[1::2]:
            self.host.answer(call, "answered")
        self.assertEqual(self.keeper.until("idle").result, "('typed', 12)\n")

    def test_threads_while_the_main_one_calls_too(self):
        self.host.tools["wait"] = self.host.tools["echo"]
        for _ in range(10):
            self.check(
                "t = started(12)\nown = [tools.echo(value=i) for i in range(50)]\njoin(t)\n"
                "own == list(range(50)), found == {i: i for i in range(12)}", "(True, True)",
            )

    def test_threads_while_the_main_one_computes(self):
        self.host.tools["wait"] = self.host.tools["echo"]
        self.check("t = started(12)\nwhile len(found) < 12: sum(range(1000))\njoin(t)\nlen(found)", "12")

    def test_one_thread_calls_many_times(self):
        self.check(
            "def many(): found['all'] = [tools.echo(value=i) for i in range(200)]\n"
            "t = threading.Thread(target=many); t.start(); t.join()\nfound['all'] == list(range(200))", "True",
        )

    def test_everything_at_once(self):
        self.host.tools["wait"] = self.host.tools["echo"]
        self.check(
            "import asyncio\n"
            "from concurrent.futures import ThreadPoolExecutor\n"
            "def several(n): return [tools.echo(value=(n, i)) for i in range(20)]\n"
            "async def many(n): return await asyncio.gather(*(tools.echo(value=(n, i)) for i in range(20)))\n"
            "def loop(n): return asyncio.run(many(n))\n"
            "expected = lambda n: [[n, i] for i in range(20)]\n"
            "with ThreadPoolExecutor(16) as pool:\n"
            "    jobs = [pool.submit((several, loop)[n % 2], n) for n in range(32)]\n"
            "    own = [tools.echo.blocking(value=i) for i in range(30)]\n"
            "    loops = [await many(n) for n in range(5)]\n"
            "    line = input()\n"
            "    found = [job.result() for job in jobs]\n"
            "([f == expected(n) for n, f in enumerate(found)].count(True), own == list(range(30)), line,\n"
            " [f == expected(n) for n, f in enumerate(loops)].count(True))", "(32, True, 'typed', 5)", b"typed\n",
        )

    def test_answers_that_come_before_anybody_waits(self):
        self.host.tools["wait"] = self.host.tools["echo"]
        for _ in range(20):
            self.check("found.clear(); join(started(3)); len(found)", "3")


class Endings(WithThreads):
    def test_an_error_in_a_thread_is_its_own(self):
        self.check(
            "def bad():\n    try: tools.fail()\n    except tools.ToolError as e: found['bad'] = str(e)\n"
            "t = threading.Thread(target=bad); t.start(); t.join()\nfound['bad']", "'it broke'",
        )

    def test_an_interrupt_ends_the_waits_of_threads_too(self):
        for code in (
            "print('on')\njoin(started(12))",
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(12) as pool: list(pool.map(work, range(100)))",
        ):
            calls = self.start(code, 12)
            self.keeper.interrupt()
            told = self.host.until_idle()
            self.assertEqual(told.outcome, "interrupted", told.traceback)
            for call in calls:
                self.host.answer(call, "late")
            if "Pool" in code:
                self.assertEqual(sorted(self.host.cancelled), sorted(call["call"] for call in calls))
            self.host.cancelled.clear()
            told = self.check("found, set(failed.values()), tools.echo(value=1)", "({}, {'tool_cancelled'}, 1)")
            self.host.calls.clear()

    def test_threads_left_behind_get_an_error(self):
        calls = self.start("t = started(5)\ntools.wait()", 6)
        (own,) = [call for call in calls if call["body"] == b"{}"]
        self.host.answer(own, "done")
        self.assertEqual(self.host.until_idle().result, "'done'\n")
        for call in calls:
            self.host.answer(call, "late")
        self.check("join(t)\nfound, sorted(failed), set(failed.values())",
                   "({}, [0, 1, 2, 3, 4], {'tool_cancelled'})")

    def test_a_left_thread_cannot_call_for_its_old_turn(self):
        self.run_code(
            "gate, done, said = threading.Event(), threading.Event(), []\n"
            "def late():\n"
            "    gate.wait()\n"
            "    try: tools.echo(value=1)\n"
            "    except tools.ToolError as e: said.append((e.code, str(e)))\n"
            "    done.set()\n"
            "threading.Thread(target=late, daemon=True).start()"
        )
        told = self.check("tools.echo\ngate.set(); done.wait(); said",
                          "[('tool_cancelled', 'the turn of this thread is over')]")
        self.assertEqual([call["name"] for call in told.all("tool_call")], ["windlass.describe"])

    def test_a_left_thread_cannot_call_between_turns(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        pipe = os.path.join(place.name, "pipe")
        os.mkfifo(pipe)
        self.run_code(
            "echo = tools.echo\n"
            "def late():\n"
            "    open(%r).read()\n"
            "    try: echo(value=1)\n"
            "    except tools.ToolError as e: print(e)\n"
            "threading.Thread(target=late, daemon=True).start()\n" % pipe
        )
        # No turn runs now. The thread goes on when the pipe has had a writer.
        with open(pipe, "w"):
            pass
        text = b""
        while b"runs\n" not in text:
            text += self.keeper.until("output").last["body"]
        self.assertEqual(text, b"a tool cannot be called while no turn runs\n")

    def test_turns_that_leave_waiting_threads_one_after_the_other(self):
        for round in range(30):
            self.check("found.clear(); failed.clear()\nt = started(4)\ntools.echo(value=1)", "1")
            if round % 2:
                self.answer_all()
        self.check("join(t)\nfound, len(failed)", "({}, 4)")

    def test_a_fork_in_a_thread_harms_neither(self):
        self.start(
            "import os\n"
            "t = started(4)\n"
            "def fork():\n"
            "    child = os.fork()\n"
            "    if not child:\n"
            "        try: tools.echo(value=1)\n"
            "        except tools.ToolError: os._exit(7)\n"
            "        os._exit(8)\n"
            "    found['child'] = os.waitpid(child, 0)[1] >> 8\n"
            "f = threading.Thread(target=fork); f.start(); f.join()\n"
            "print('forked')\n"
            "join(t)\nfound['child'], len(found)", 4)
        self.keeper.until_printed("forked\n")
        self.answer_all()
        self.assertEqual(self.keeper.until("idle").result, "(7, 5)\n")

    def test_finalizers_that_call_tools_never_hang(self):
        self.check(
            "class Closing:\n"
            "    def __init__(self): self.me = self\n"
            "    def __del__(self):\n"
            "        try: tools.echo(value='closed')\n"
            "        except tools.ToolError: pass\n"
            "import gc\ngc.set_threshold(5)\n"
            "def many():\n"
            "    for i in range(60):\n        Closing(); assert tools.echo(value=i) == i\n"
            "t = [threading.Thread(target=many) for _ in range(3)]\n"
            "for x in t: x.start()\n"
            "many()\njoin(t)\ngc.set_threshold(700)\n'done'", "'done'",
        )


if __name__ == "__main__":
    unittest.main()
