"""Where an event loop runs, the same names are awaited, and many calls are open at once."""

import unittest

from host import WithHost


class Awaiting(WithHost):
    def test_await_returns_the_value_or_raises(self):
        self.check("await tools.echo(value={'a': 1})", "{'a': 1}")
        told = self.run_code("await tools.fail()")
        self.assertEqual(told.error, {"name": "ToolError", "message": "it broke"})
        self.assertNotIn("windlass_worker", told.traceback)

    def test_many_at_once_come_back_in_any_order(self):
        self.keeper.start("import asyncio\nawait asyncio.gather(*(tools.wait(value=i) for i in range(38)))")
        for _, arguments, call in reversed(self.host.until_called(38)):
            self.host.answer(call, arguments["value"] * 2)
        self.assertEqual(self.keeper.until("idle").result, "%r\n" % [i * 2 for i in range(38)])

    def test_tasks_wait_and_asyncio_run_work(self):
        self.run_code("import asyncio\nasync def f(n): return [await tools.echo(value=i) for i in range(n)]")
        for code in ("await f(3)", "asyncio.run(f(3))", "await asyncio.create_task(f(3))",
                     "await asyncio.wait_for(f(3), 5)", "[await f for f in map(tools.echo, range(3))]"):
            self.check(code, "[0, 1, 2]")
        self.check("await asyncio.gather(f(1), asyncio.to_thread(tools.echo, 1), tools.echo(2))", "[[0], 1, 2]")
        self.check("tools.echo(value='sync again')", "'sync again'")

    def test_a_result_that_is_not_awaited_says_so(self):
        self.check("await tools.echo()\ntools.wait()", "<the result of tools.wait is on its way; await it>")
        for use in ("['key']", ".get('key')"):
            told = self.run_code("await tools.echo()\ntools.echo(value={})" + use)
            self.assertIn("`await tools.echo(...)`, or `tools.echo.blocking(...)`", told.error["message"])

    def test_blocking_blocks_also_there(self):
        self.check("import asyncio\nawait asyncio.sleep(0)\ntools.echo.blocking(value=4)", "4")
        self.keeper.start("one = tools.wait(value=1)\ntwo = tools.echo.blocking(value=2)\nawait one, two")
        calls = self.host.until_called(3)
        self.host.answer(calls[1][2], 1)
        self.assertEqual(self.keeper.until("idle").result, "(1, 2)\n")

    def test_loops_in_several_threads_and_the_main_one(self):
        self.check(
            "import asyncio, threading\n"
            "async def many(n): return await asyncio.gather(*(tools.echo(value=(n, i)) for i in range(20)))\n"
            "found = {}\n"
            "def work(n): found[n] = asyncio.run(many(n))\n"
            "threads = [threading.Thread(target=work, args=(n,)) for n in range(5)]\n"
            "for t in threads: t.start()\n"
            "found[5] = await many(5)\n"
            "for t in threads: t.join()\n"
            "all(found[n] == [[n, i] for i in range(20)] for n in range(6))", "True",
        )

    def test_input_is_asked_for_while_calls_are_open(self):
        self.keeper.start("import asyncio\none = tools.wait()\nline = input('? ')\nline, await one")
        (_, _, call), = self.host.until_called(1)
        self.keeper.until("stdin_wait")
        self.host.answer(call, "answered")
        self.keeper.answer(b"typed\n")
        self.assertEqual(self.keeper.until("idle").result, "('typed', 'answered')\n")

    def test_the_loop_is_left_as_it_was(self):
        self.check("import asyncio\nawait tools.echo()\nfor _ in range(3): await asyncio.sleep(0)\n"
                   "asyncio.get_running_loop()._selector.get_map().__len__()", "1")


class Cancelling(WithHost):
    def test_a_cancelled_task_cancels_its_call(self):
        self.keeper.start(
            "import asyncio\n"
            "try: await asyncio.wait_for(tools.wait(), 0.01)\n"
            "except asyncio.TimeoutError: print('too slow')\n"
            "task = asyncio.ensure_future(tools.wait())\n"
            "await asyncio.sleep(0)\n"
            "task.cancel(), task.cancel(), task, await tools.echo(value=1)"
        )
        told = self.host.until_idle()
        self.assertEqual(told.result, "(True, False, <the result of tools.wait cancelled>, 1)\n")
        self.assertEqual(self.host.cancelled, [call["call"] for name, _, call in self.host.calls[:2]])

    def test_an_interrupt_cancels_all_calls_of_the_turn(self):
        many = ("async def f():\n"
                "    asyncio.get_running_loop().call_soon(print, 'on')\n"
                "    await asyncio.gather(*(tools.wait(value=i) for i in range(38)))\n")
        for code in (many + "await f()", many + "asyncio.run(f())"):
            self.host.calls.clear()
            self.host.cancelled.clear()
            self.keeper.start("import asyncio\n" + code)
            self.host.until_called(38)
            self.keeper.until_printed("on\n")
            self.keeper.interrupt()
            told = self.host.until_idle()
            self.assertEqual((told.outcome, told.errors), ("interrupted", ""))
            self.assertEqual(len(set(self.host.cancelled)), 38)
            for _, _, call in self.host.calls:
                self.host.answer(call, "late")
            self.check("await tools.echo(value='next')", "'next'")

    def test_a_loop_that_is_closed_with_open_calls_harms_nobody(self):
        self.keeper.start(
            "import asyncio\n"
            "loop = asyncio.new_event_loop()\n"
            "async def f(): return tools.wait()\n"
            "result = loop.run_until_complete(f())\n"
            "loop.close()\n"
            "tools.echo(value=1)"
        )
        (_, _, call), *_ = self.host.until_called(1)
        self.host.answer(call, "nobody wants it")
        told = self.host.until_idle()
        self.assertEqual((told.result, told.errors), ("1\n", ""))
        self.check("await tools.echo(value=2)", "2")

    def test_a_loop_of_a_left_thread_is_told_that_its_turn_is_over(self):
        self.keeper.start(
            "import asyncio, threading\n"
            "seen, done = [], threading.Event()\n"
            "async def f():\n"
            "    for _ in range(2):\n"
            "        try: await tools['wait']()\n"
            "        except tools.ToolError as e: seen.append((e.code, str(e)))\n"
            "    done.set()\n"
            "threading.Thread(target=asyncio.run, args=(f(),), daemon=True).start()\n"
            "tools.wait(value='mine')"
        )
        calls = self.host.until_called(2)
        (own,) = [call for _, arguments, call in calls if arguments]
        self.host.answer(own, None)
        self.host.until_idle()
        told = self.run_code("done.wait(), seen[0]")
        self.assertEqual(told.result, "(True, ('tool_cancelled', 'the turn of the call is over'))\n")


if __name__ == "__main__":
    unittest.main()
