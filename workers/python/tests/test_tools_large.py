"""Large arguments and results, in frames that may be interleaved, and the limit."""

import json
import select
import unittest

from host import CHUNK, WithHost

LARGE = 950_000


class Large(WithHost):
    def test_950_kb_each_way_again_and_again(self):
        self.run_code("text = 'é\"' + 'x' * %d" % LARGE)
        for _ in range(12):
            self.check("tools.echo(value=text) == text", "True")

    def test_12_at_once_in_threads_and_on_a_loop(self):
        self.run_code(
            "import asyncio, threading\ntexts = [chr(97 + i) * %d for i in range(12)]\nfound = {}\n"
            "def work(i): found[i] = tools.echo(value=texts[i]) == texts[i]" % LARGE
        )
        for _ in range(3):
            self.check(
                "found.clear()\nt = [threading.Thread(target=work, args=(i,)) for i in range(12)]\n"
                "for x in t: x.start()\nfor x in t: x.join()\nlist(found.values()).count(True)", "12",
            )
            self.check("await asyncio.gather(*map(tools.echo, texts)) == texts", "True")

    def test_results_whose_frames_are_mixed(self):
        self.run_code("import asyncio\nfrom concurrent.futures import ThreadPoolExecutor\n"
                      "pool = ThreadPoolExecutor(5)\nshort = lambda results: [r[:3] for r in results]")
        for code in ("short(await asyncio.gather(*map(tools.wait, range(5))))",
                     "short(pool.map(tools.wait, range(5)))"):
            self.host.calls.clear()
            self.keeper.start(code)
            calls = self.host.until_called(5)
            bodies = [json.dumps("%d%d%d" % ((a["value"],) * 3) + "y" * LARGE).encode() for _, a, _ in calls]
            for at in range(0, max(map(len, bodies)), CHUNK):
                for (_, _, call), body in zip(calls, bodies):
                    more = {"more": True} if at + CHUNK < len(body) else {}
                    self.host.send(call, body[at : at + CHUNK], ok=True, **more)
            told = self.keeper.until("idle")
            self.assertEqual(told.result, "['000', '111', '222', '333', '444']\n", told.traceback)

    def test_an_error_after_some_frames_of_a_result(self):
        self.keeper.start("tools.wait()")
        (_, _, call), = self.host.until_called(1)
        for _ in range(3):
            self.host.send(call, b"x" * CHUNK, ok=True, more=True)
        self.host.fail(call, message="it stopped", code="tool_deadline_passed")
        self.assertEqual(self.keeper.until("idle").error["name"], "ToolDeadlinePassed")
        self.check("tools.echo(value=1)", "1")

    def test_a_result_in_many_small_frames(self):
        self.keeper.start("sum(tools.wait())")
        (_, _, call), = self.host.until_called(1)
        body = json.dumps(list(range(2000))).encode()
        for at in range(len(body)):
            self.host.send(call, body[at : at + 1], ok=True, **({"more": True} if at + 1 < len(body) else {}))
        self.assertEqual(self.keeper.until("idle").result, "1999000\n")

    def test_arguments_over_the_limit_are_an_error_here(self):
        self.check(
            "limit = 16 * 1024 * 1024 - len('{\"value\":\"\"}')\n"
            "try: tools.echo(value='x' * (limit + 1))\nexcept tools.ToolError as e: error = e\n"
            "error.code, error.tool, '16777217 bytes' in str(error)",
            "('message_too_large', 'echo', True)",
        )
        self.assertEqual(self.host.calls, [])
        self.host.tools["wait"] = lambda value: len(value)
        self.check("tools.wait('x' * limit) == limit", "True")

    def test_a_large_call_that_is_answered_early_is_cut_short(self):
        self.run_code("import threading\ntext = 'x' * 8_000_000\n"
                      "def small():\n    tools.wait(1)\n    print('read')\n"
                      "def large():\n    try: tools.wait(text)\n    except tools.ToolError as e: print(e)")
        # The main thread waits until the small call is sent: it would otherwise queue behind the
        # large one.
        self.keeper.start("a = threading.Thread(target=small); a.start()\ntools.wait(0)\n"
                          "b = threading.Thread(target=large); b.start(); b.join(); a.join()")
        calls = {arguments["value"]: call for _, arguments, call in self.host.until_called(2)}
        self.host.answer(calls[0], None)
        # The large call fills the socket, and its thread blocks until the test reads more. The
        # other thread reads its answer meanwhile.
        keeper, frames = self.keeper, 0
        while not any(event.get("more") for event in keeper.said):
            select.select([keeper.socket], [], [], 10)
            keeper._bytes += keeper.socket.recv(65536)
            keeper._parse()
            while keeper.said and not keeper.said[0].get("more"):
                self.host.take(keeper.said.pop(0))
        self.host.fail(keeper.said[0], message="too much", code="overloaded")
        self.host.answer(calls[1], None)
        self.assertTrue(select.select([keeper.pipes[1]], [], [], 10)[0], "no thread read the answers")
        while keeper.pick("tool_call").get("more"):
            frames += 1
        self.assertEqual(sorted(keeper.until("idle").printed.splitlines()), ["read", "too much"])
        self.assertLess(frames, 5)

    def test_an_interrupt_while_a_large_call_is_sent(self):
        self.run_code("text = 'x' * 8_000_000\ntools.wait")
        for round in range(10):
            self.keeper.start("print('on')\ntools.wait(text)")
            self.keeper.until_printed("on\n")
            frames = 0
            while frames < round:
                event = self.keeper.pick("tool_call")
                frames += event["name"] == "wait"
                if event["name"] != "wait":
                    self.host.take(event)
            self.keeper.interrupt()
            told = self.keeper.until("idle", turn=self.keeper.turn)
            self.assertEqual(told.outcome, "interrupted")
            # A call that has begun is cancelled and then finished, so that the keeper does not
            # expect the rest.
            sent = [(e["kind"], e.get("more", False), e["body"] == b"") for e in told.events
                    if e.get("name") == "wait" or e.get("kind") == "tool_cancel"]
            whole = [("tool_call", False, False), ("tool_cancel", False, True)]
            if round > 1 and sent[-2:] != whole:
                self.assertEqual(sent[-2:], [("tool_cancel", False, True), ("tool_call", False, True)])
            self.check("tools.echo(value='whole')", "'whole'")


if __name__ == "__main__":
    unittest.main()
