"""An interrupt ends the turn it names, keeps the variables, and never hits another turn."""

import time
import unittest

from test_cells import WithKeeper


class Stopping(WithKeeper):
    def stop(self, code, ready=None):
        """Start the code, interrupt it when it has printed `ready`, and check that the state is
        intact."""
        self.run_code("kept = [1, 2, 3]")
        self.keeper.start(code)
        self.keeper.until_printed(ready or "on\n")
        asked = time.monotonic()
        self.keeper.interrupt()
        told = self.keeper.until("idle")
        self.assertEqual(told.outcome, "interrupted", told.traceback)
        self.assertLess(time.monotonic() - asked, 10)
        self.assertIn("KeyboardInterrupt", told.traceback)
        self.assertNotIn("windlass_worker", told.traceback)
        self.assertEqual(self.run_code("kept").result, "[1, 2, 3]\n")
        return told

    def test_everything_that_blocks_is_stopped(self):
        for code in (
            "import time\nprint('on')\ntime.sleep(100)",
            "print('on')\nwhile True: pass",
            "print('on')\n[i for i in iter(int, 1)]",
            "import threading\nprint('on')\nthreading.Lock().__enter__()\nl = threading.Lock()\nl.acquire()\nl.acquire()",
            "import threading\nprint('on')\nthreading.Event().wait()",
            "import subprocess\nprint('on')\nsubprocess.run(['sleep', '100'])",
            "import os, signal\nprint('on')\nsignal.pause()",
            "import select, os\nprint('on')\nselect.select([os.pipe()[0]], [], [])",
            "import queue\nprint('on')\nqueue.Queue().get()",
            "import asyncio\nprint('on')\nawait asyncio.sleep(100)",
            "import asyncio\nprint('on')\nasyncio.run(asyncio.sleep(100))",
            "import asyncio\nprint('on')\nawait asyncio.gather(*(asyncio.sleep(100) for _ in range(9)))",
        ):
            with self.subTest(code=code):
                self.stop(code)

    def test_interrupted_tasks_run_their_finally_before_idle(self):
        told = self.stop(
            "import asyncio\n"
            "async def f():\n"
            "    try:\n        print('on')\n        await asyncio.sleep(100)\n"
            "    finally: print('cleaned up')\n"
            "await f()"
        )
        self.assertIn("cleaned up\n", told.printed)

    def test_an_interrupt_in_an_event_loop_loses_no_step(self):
        self.run_code("import asyncio\nasync def pause():\n    await asyncio.sleep(0)\nawait pause()")
        self.run_code("loop = None\nasync def spin():\n    while True: await asyncio.gather(pause(), pause())")
        for i in range(40):
            self.stop("loop = loop or asyncio.get_running_loop()\nprint('on')\nawait spin()")
            told = self.run_code("await pause()\nasyncio.get_running_loop() is loop")
            self.assertEqual(told.result, "True\n", "the interrupt %d lost the loop" % i)
        # The loop notes a step within another one: who gives wakes who takes.
        self.run_code(
            "async def give(queue):\n    while True: await queue.put(1)\n"
            "async def take(queue):\n    while True: await queue.get()\n"
            "async def share():\n    queue = asyncio.Queue(1)\n    await asyncio.gather(give(queue), take(queue))"
        )
        for i in range(400):
            self.stop("loop = loop or asyncio.get_running_loop()\nprint('on')\nawait share()")
            told = self.run_code("await pause()\nasyncio.get_running_loop() is loop")
            self.assertEqual(told.result, "True\n", "the interrupt %d lost the loop" % i)
        # The interrupt of one task ends another one that waits for it.
        self.run_code(
            "async def count():\n    while True:\n        for _ in range(3000): pass\n        await pause()\n"
            "async def both(): await asyncio.gather(count(), count())"
        )
        for i in range(10):
            self.stop("loop = loop or asyncio.get_running_loop()\nprint('on')\nawait both()")
            told = self.run_code("await pause()\nasyncio.get_running_loop() is loop")
            self.assertEqual(told.result, "True\n", "the interrupt %d lost the loop" % i)
        # Here a lost step would be waited for without end.
        for _ in range(40):
            self.stop("print('on')\nasyncio.run(spin())")

    def test_an_interrupt_while_a_finalizers_exception_is_shown_is_not_lost(self):
        self.run_code("class Fails:\n    def __del__(self): 1 / 0")
        for _ in range(100):
            self.stop("print('on')\nwhile True:\n    Fails()\n    for _ in range(300): pass")

    def test_waiting_for_input_is_stopped_and_the_input_dropped(self):
        for code in ("input('? ')", "import sys\nsys.stdin.read()", "import os\nos.read(0, 1)", "breakpoint()"):
            self.keeper.start(code)
            self.keeper.until("stdin_wait")
            self.keeper.interrupt()
            self.assertEqual(self.keeper.until("idle").outcome, "interrupted", code)
            self.keeper.answer(b"too late\n")
            self.assertEqual(self.run_code("input()", b"next\n").result, "'next'\n")

    def test_a_printing_turn_is_stopped(self):
        self.stop("print('on')\nwhile True: print('x' * 1000)")

    def test_code_that_goes_on_after_an_interrupt_can_be_interrupted_again(self):
        self.keeper.start(
            "import time\n"
            "for name in 'ab':\n"
            "    try:\n        print(name)\n        time.sleep(100)\n"
            "    except KeyboardInterrupt: print('caught', name)\n"
            "'end'"
        )
        for name in "ab":
            self.keeper.until_printed(name + "\n")
            self.keeper.interrupt()
            self.keeper.until_printed("caught %s\n" % name)
        told = self.keeper.until("idle")
        self.assertEqual((told.outcome, told.result), ("ok", "'end'\n"))

    def test_an_interrupted_turn_finds_no_more_input(self):
        self.keeper.start("try: input()\nexcept KeyboardInterrupt: pass\ninput()")
        self.keeper.until("stdin_wait")
        self.keeper.interrupt()
        told = self.keeper.until("idle")
        self.assertEqual((told.outcome, told.all("stdin_wait")), ("interrupted", []))
        self.assertIn("EOFError", told.traceback)

    def test_a_replaced_handler_is_put_back_for_the_next_turn(self):
        self.run_code("import signal, time\n_ = signal.signal(signal.SIGINT, signal.SIG_IGN)")
        self.stop("print('on')\ntime.sleep(100)")

    def test_a_signal_of_the_codes_own_is_a_keyboard_interrupt(self):
        for code in (
            "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)",
            "import os, subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 0.1; kill -INT $PPID'])\ninput()",
        ):
            self.keeper.start(code)
            told = self.keeper.until("idle")
            self.assertEqual(told.outcome, "interrupted", code)
        self.stop("import time\nprint('on')\ntime.sleep(100)")


    def test_an_interrupt_swallowed_by_a_finalizer_is_raised_again(self):
        told = self.stop(
            "import time\n"
            "class Last:\n"
            "    def __del__(self):\n"
            "        print('on')\n"
            "        time.sleep(100)\n"
            "Last()\n"
            "time.sleep(100)"
        )
        self.assertEqual(told.errors, "")


class Stale(WithKeeper):
    def test_an_interrupt_for_a_turn_that_is_over_stops_nothing(self):
        self.run_code("import time")
        for _ in range(20):
            self.keeper.interrupt(turn=self.keeper.turn)
            self.assertEqual(self.run_code("time.sleep(0.002)").outcome, "ok")

    def test_a_late_signal_does_not_hit_the_next_turn(self):
        self.run_code("import time")
        self.keeper.send(kind="interrupt", turn=self.keeper.turn)
        self.keeper.start("print('on')\ntime.sleep(0.2)")
        self.keeper.until_printed("on\n")
        self.keeper.signal()
        self.assertEqual(self.keeper.until("idle").outcome, "ok")

    def test_a_frame_met_while_reading_input_takes_its_signal_with_it(self):
        self.keeper.start("import time\ninput()")
        self.keeper.until("stdin_wait")
        self.keeper.send(kind="interrupt", turn=self.keeper.turn)
        self.assertEqual(self.keeper.until("idle").outcome, "interrupted")
        self.keeper.start("print('on')\ntime.sleep(0.2)")
        self.keeper.until_printed("on\n")
        self.keeper.signal()
        self.assertEqual(self.keeper.until("idle").outcome, "ok")

    def test_a_signal_while_idle_is_ignored(self):
        for _ in range(20):
            self.keeper.signal()
            self.assertEqual(self.run_code("1 + 1").result, "2\n")

    def test_an_interrupt_right_behind_the_start_is_not_forgotten(self):
        self.run_code("import time")
        for _ in range(20):
            self.keeper.start("time.sleep(100)")
            self.keeper.interrupt()
            self.assertEqual(self.keeper.until("idle").outcome, "interrupted")

    def test_interrupts_at_any_moment_leave_the_worker_whole(self):
        self.run_code("kept = 1\nimport time")
        outcomes = set()
        for round in range(300):
            self.keeper.start("x = sum(range(%d))\nkept" % (round * 40))
            if round % 3 == 0:
                end = time.perf_counter() + round * 1e-6
                while time.perf_counter() < end:
                    pass
            self.keeper.interrupt()
            told = self.keeper.until("idle", turn=self.keeper.turn)
            outcomes.add(told.outcome)
            self.assertIn(told.outcome, ("ok", "interrupted"))
        self.keeper.start("for _ in range(10**6): pass\nkept")
        told = self.keeper.until("idle")
        self.assertEqual((told.outcome, told.result), ("ok", "1\n"), outcomes)

    def test_interrupts_while_frames_are_sent_never_break_one(self):
        self.run_code("import time")
        for _ in range(40):
            self.keeper.start("print('on')\nwhile True: display('x' * 500_000, mime='text/plain')")
            self.keeper.until_printed("on\n")
            self.keeper.interrupt()
            self.assertEqual(self.keeper.until("idle").outcome, "interrupted")
        self.assertEqual(self.run_code("1 + 1").result, "2\n")

    def test_an_alarm_that_raises_after_its_turn_hurts_nobody(self):
        self.run_code(
            "import signal, time\n"
            "def late(*_): raise TimeoutError\n"
            "_ = signal.signal(signal.SIGALRM, late)\n"
            "signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)\nsignal.getsignal(signal.SIGALRM) is late"
        )
        for _ in range(1000):
            self.keeper.start("1 + 1")
            self.assertIn(self.keeper.until("idle", turn=self.keeper.turn).outcome, ("ok", "error"))
        # On a slow machine, an alarm often ends the code before it has run.
        for _ in range(1000):
            if self.run_code("signal.setitimer(signal.ITIMER_REAL, 0)").outcome == "ok":
                break
        self.assertEqual(self.run_code("1 + 1").result, "2\n")


if __name__ == "__main__":
    unittest.main()
