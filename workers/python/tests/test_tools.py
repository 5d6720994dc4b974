"""A tool is called by its name, blocks, and returns or raises what its host function did."""

import os
import signal
import time
import unittest

from host import WithHost


class Calling(WithHost):
    def test_the_capability_is_named(self):
        self.assertIn("tools", self.keeper.ready.events[-1]["capabilities"])

    def test_values_of_every_kind_pass_both_ways(self):
        for value in ("None", "True", "0", "-1.5", "1e+300", "10**30", "'é€😀\\x00\"\\\\'", "[1, [2], {}]",
                      "{'a': {'b': [None, False]}, 'é': ''}"):
            self.check("value = %s\ntools.echo(value=value) == value" % value, "True")

    def test_path_objects_are_sent_as_text(self):
        self.check("import pathlib; tools.echo(value=pathlib.PurePosixPath('a', 'é'))", "'a/é'")
        self.check("tools.echo(value=[{'in': pathlib.Path('/b')}])", "[{'in': '/b'}]")
        told = self.run_code("class Odd:\n    def __fspath__(self): return b'x'\ntools.echo(value=Odd())")
        self.assertIn("a value of type Odd is not JSON", told.error["message"])

    def test_a_call_carries_its_names_and_numbers(self):
        self.check("tools.echo(value=1); tools.echo(value='é')", "'é'")
        (first, _, header), (_, arguments, other) = self.host.calls
        self.assertEqual((first, header["turn"], "deadline_ms" in header), ("echo", 1, False))
        self.assertEqual((arguments, other["body"]), ({"value": "é"}, '{"value":"é"}'.encode()))
        self.assertEqual(other["call"], header["call"] + 1)
        self.check("tools.echo()", "")
        self.assertEqual(self.host.calls[-1][2]["turn"], 2)
        self.assertGreater(self.host.calls[-1][2]["call"], other["call"])

    def test_a_tool_is_described_once_a_turn(self):
        told = self.check("for i in range(5): tools.echo(value=i)", "")
        self.assertEqual([e["name"] for e in told.all("tool_call")], ["windlass.describe"] + ["echo"] * 5)
        told = self.check("echo = tools.echo\necho(value=1), tools.echo(value=2)", "(1, 2)")
        self.assertEqual(len(told.all("tool_call")), 3)
        self.check("echo is tools.echo", "True")

    def test_a_tool_that_has_changed_is_described_anew(self):
        self.host.offer("same", lambda **a: a, properties={"a": {}})
        self.check("tools.same(1)", "{'a': 1}")
        self.host.offer("same", lambda **a: a, properties={"b": {}})
        self.check("tools.same(1)", "{'b': 1}")

    def test_groups_and_items(self):
        self.host.offer("files.read", lambda path: path.upper(), "Read a file.", properties={"path": {}})
        self.host.offer("files.size", len, "Its size.")
        self.check("tools.files.read('a'), tools['files.read'](path='b')", "('A', 'B')")
        self.check("files = tools.files\ntools['files'].read('a'), files.read('b'), files['read']('c')",
                   "('A', 'B', 'C')")
        self.check("repr(tools.files), dir(tools.files)", "('<tools.files: read, size>', ['read', 'size'])")
        told = self.run_code("tools.files.raed")
        self.assertEqual(told.error["name"], "ToolNotFound")

    def test_a_deadline_is_passed_on(self):
        self.host.offer("files.read", lambda path: path, properties={"path": {}})
        for code, deadline in (
            ("tools(deadline=5.0).echo()", 5000),
            ("quick = tools(deadline=0.0001)\nquick.echo()", 1),
            ("quick.files.read('a') and None", 1),
            ("quick['files.read']('a') and None", 1),
            ("tools(deadline=2).echo.blocking()", 2000),
            ("tools(deadline=None).echo()", None),
            ("await tools(deadline=3).echo()", 3000),
        ):
            self.check(code, "")
            self.assertEqual(self.host.calls[-1][2].get("deadline_ms"), deadline, code)
        for wrong, name in (("0", "ValueError"), ("-1", "ValueError"), ("float('nan')", "ValueError"),
                            ("'5'", "TypeError"), ("1e300", "ValueError")):
            self.assertEqual(self.run_code("tools(deadline=%s)" % wrong).error["name"], name)

    def test_the_namespace_of_the_code_is_left_alone(self):
        self.check("'tools' in globals(), 'tools' in dir(__builtins__)", "(False, True)")
        self.assertEqual(self.run_code("tools._repr_png_").error["name"], "AttributeError")
        self.assertIn("<tools", self.run_code("tools").result)

    def test_nothing_is_imported_before_the_first_use(self):
        loaded = set(self.run_code("import sys\nbefore = set(sys.modules)\nprint(*before)").printed.split())
        for name in ("calls", "catalogue", "loop_calls", "plain_json", "polling", "signature", "tool_errors"):
            self.assertNotIn("windlass_worker." + name, loaded)
        told = self.run_code("tools.echo(value=1)\nprint(*(set(sys.modules) - before))")
        for name in ("json", "inspect", "asyncio", "threading", "re", "typing", "select"):
            self.assertNotIn(name, told.printed.split())

    def test_patched_modules_do_not_matter(self):
        self.run_code("import json, os, select\njson.loads = json.dumps = os.write = os.read = None")
        self.check("tools.echo(value=[1])", "[1]")


class Arguments(WithHost):
    def setUp(self):
        super().setUp()
        self.host.offer(
            "open", lambda **a: a, required=["path", "mode"], additionalProperties=False,
            properties={"size": {}, "path": {}, "from": {}, "mode": {}},
        )
        self.host.offer("free", lambda **a: a)

    def test_positions_follow_the_schema_with_the_required_first(self):
        for call, value in (
            ("open('p', 'm')", "{'path': 'p', 'mode': 'm'}"),
            ("open('p', 'm', 3)", "{'path': 'p', 'mode': 'm', 'size': 3}"),
            ("open('p', mode='m', **{'from': 1})", "{'path': 'p', 'mode': 'm', 'from': 1}"),
            ("free(x=1, self=2, tools=3, name=4)", "{'x': 1, 'self': 2, 'tools': 3, 'name': 4}"),
            ("free(**{'a b': 1, '%d': 2})", "{'a b': 1, '%d': 2}"),
        ):
            self.check("tools." + call, value)

    def test_wrong_arguments_are_errors_here(self):
        for call, message in (
            ("open()", "open() missing 2 required arguments: 'path', 'mode'"),
            ("open('p')", "open() missing 1 required argument: 'mode'"),
            ("open(1, 2, 3, 4)", "open() takes 3 positional arguments but 4 were given"),
            ("open(1, 2, path=3)", "open() got multiple values for argument 'path'"),
            ("open(1, 2, colour=3)", "open() got an unexpected keyword argument 'colour'"),
            ("free(1)", "free() takes 0 positional arguments but 1 was given"),
            ("free(a=1, b={2})", "free() argument 'b' cannot be sent as JSON: a value of type set is not JSON"),
            ("free(a=[float('nan')])", "free() argument 'a' cannot be sent as JSON: "),
            ("free(a='\\ud800')", "free() argument 'a' cannot be sent as JSON: a text with half"),
            ("free(a=[1, {(1, 2): 3}])", "free() argument 'a' cannot be sent as JSON: "),
        ):
            told = self.run_code("tools." + call)
            self.assertEqual(told.error["name"], "TypeError", call)
            self.assertIn(message, told.error["message"])
            self.assertNotIn("windlass_worker", told.traceback)
        told = self.run_code("a = []\na.append(a)\ntools.free(a=a)")
        self.assertIn("'a' cannot be sent as JSON: the value is nested too deeply", told.error["message"])
        self.assertEqual(self.host.calls, [])

    def test_strange_schemas_are_no_obstacle(self):
        for schema in (
            {"properties": [1], "required": "path"},
            {"properties": {"a": True, "b": None, "": {}, "1": {}}, "required": [1, None, "zz"]},
            {"properties": {"a": {"type": ["string", 3], "$ref": 5, "enum": [], "items": 3}}},
            {"properties": {"a": {"$ref": "#/properties/a"}, "b": {"anyOf": [{}, {"type": "nothing"}]}}},
            {"$defs": {"x": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/x/y/z"}}},
        ):
            self.host.offer("strange", lambda **a: a, **schema)
            self.check("import inspect\nstr(inspect.signature(tools.strange)) and tools.strange(a=1, zz=2)",
                       "{'a': 1, 'zz': 2}")
        self.host.offer("none", lambda **a: a)
        self.host.described["none"] = (None, "text")
        self.check("tools.none(a=1)", "{'a': 1}")


class Errors(WithHost):
    def test_an_error_has_the_tools_own_message(self):
        self.host.tools["fail"] = lambda: self._fail("no such city: Atlantis", type="LookupError")
        told = self.run_code("tools.fail()")
        self.assertEqual(told.error, {"name": "ToolError", "message": "no such city: Atlantis"})
        self.assertIn("\ntools.ToolError: no such city: Atlantis\n", told.traceback)
        self.assertNotIn("windlass_worker", told.traceback)
        self.check(
            "try: tools.fail()\nexcept tools.ToolError as error: e = error\n"
            "str(e), e.tool, e.code, e.type",
            "('no such city: Atlantis', 'fail', 'tool_failed', 'LookupError')",
        )
        self.check("tools.echo(value='still works')", "'still works'")

    def test_each_code_has_its_class(self):
        for code, name, bases in (
            ("tool_deadline_passed", "ToolDeadlinePassed", "TimeoutError"),
            ("tool_host_gone", "ToolHostGone", "ConnectionError"),
            ("tool_not_found", "ToolNotFound", "AttributeError"),
            ("tool_cancelled", "ToolError", "Exception"),
            ("overloaded", "ToolError", "Exception"),
            ("a_new_one", "ToolError", "Exception"),
        ):
            self.host.tools["fail"] = lambda: self._fail("why", code=code)
            self.check(
                "try: tools.fail()\nexcept tools.%s as error: e = error\n"
                "type(e) is tools.%s, isinstance(e, tools.ToolError), isinstance(e, %s), str(e), e.code"
                % (name, name, bases),
                "(True, True, True, 'why', '%s')" % code,
            )
        self.check("import pickle\nf = pickle.loads(pickle.dumps(e))\ntype(f) is type(e), str(f), f.tool, f.code",
                   "(True, 'why', 'fail', 'a_new_one')")

    def test_what_is_not_there_is_no_attribute(self):
        self.check("hasattr(tools, 'nothing'), getattr(tools, 'nothing', 5)", "(False, 5)")
        told = self.run_code("tools.nothing(1)")
        self.assertEqual(told.error, {"name": "ToolNotFound", "message": "there is no tool 'nothing'"})
        self.assertNotIn("Did you mean", told.traceback)

    def test_an_error_voids_what_came_before_it(self):
        self.keeper.start("tools.wait()")
        (_, _, call), = self.host.until_called(1)
        self.host.send(call, b'"begun', ok=True, more=True)
        self.host.fail(call, message="lost on the way", code="tool_host_gone")
        self.assertEqual(self.keeper.until("idle").error["message"], "lost on the way")

    def test_a_strange_answer_is_an_error_of_that_call(self):
        for body, ok, message in (
            (b"{", True, "is not JSON"),
            (b"1 2", True, "more than one"),
            (b"\xff", True, "is not JSON"),
            (b"nonsense", True, "is not JSON"),
            (b'"just a text"', False, "just a text"),
            (b"{}", False, "tool_failed"),
        ):
            self.keeper.start("tools.wait()")
            call = self.host.until_called(len(self.host.calls) + 1)[-1][2]
            self.host.send(call, body, ok=ok)
            told = self.keeper.until("idle")
            self.assertEqual(told.error["name"], "ToolError", body)
            self.assertIn(message, told.error["message"])
        self.keeper.start("tools.wait()")
        call = self.host.until_called(len(self.host.calls) + 1)[-1][2]
        self.host.send(call, b" [1, NaN]\n ", ok=True)
        self.assertEqual(self.keeper.until("idle").result, "[1, nan]\n")


class Late(WithHost):
    def test_results_for_other_calls_and_turns_are_dropped(self):
        self.run_code("tools.echo(value=1)")
        self.keeper.start("tools.wait()")
        (_, _, call), = self.host.until_called(2)[1:]
        for turn, number in ((call["turn"] - 1, call["call"]), (call["turn"], 1), (call["turn"], 999),
                             (call["turn"] + 1, call["call"]), (None, None)):
            self.host.send({"turn": turn, "call": number}, b'"wrong"', ok=True)
        self.host.answer(call, "right")
        self.assertEqual(self.keeper.until("idle").result, "'right'\n")

    def test_orphaned_calls_do_not_touch_the_next_turn(self):
        self.keeper.start(
            "import asyncio\n"
            "for i in range(11): tools.wait(value=i)\n"
            "await asyncio.sleep(0)"
        )
        orphans = [call for _, _, call in self.host.until_called(11)]
        self.assertEqual(self.keeper.until("idle").outcome, "ok")
        self.keeper.start("[await tools.wait(value=i) for i in range(11)]")
        for at, orphan in enumerate(orphans):
            (name, arguments, call) = self.host.until_called(12 + at)[-1]
            self.assertEqual(arguments, {"value": at})
            self.assertNotEqual(call["call"], orphan["call"])
            self.host.answer(orphan, "late")
            self.host.send({**orphan, "turn": call["turn"]}, b'"late"', ok=True)
            self.host.answer(call, "own %d" % at)
        told = self.keeper.until("idle")
        self.assertEqual(told.result, "%r\n" % ["own %d" % at for at in range(11)])

    def test_no_tool_is_called_between_turns(self):
        self.run_code("import atexit\n@atexit.register\ndef f():\n    try: tools.echo()\n"
                      "    except tools.ToolError as e: print(e)\ntools.echo()")
        self.keeper.send(kind="shutdown", grace_ms=1000)
        self.assertEqual(self.keeper.ended(), 0)
        self.assertIn(b"a tool cannot be called while no turn runs\n", [e["body"] for e in self.keeper.said])

    def test_a_forked_child_cannot_call(self):
        told = self.run_code(
            "import os\ntools.echo()\nchild = os.fork()\n"
            "if not child:\n"
            "    for call in (lambda: tools.echo(value=1), lambda: tools.other):\n"
            "        try: call()\n"
            "        except tools.ToolError as e: print(e)\n"
            "    print(dir(tools))\n"
            "    os._exit(0)\n"
            "os.waitpid(child, 0)[1], tools.echo(value=2)"
        )
        self.assertEqual(told.result, "(0, 2)\n")
        self.assertEqual(told.printed.splitlines()[:2], ["a forked process cannot call tools"] * 2)


class Interrupting(WithHost):
    def test_an_interrupt_ends_the_wait_and_cancels_the_call(self):
        for count in range(1, 20):
            self.keeper.start("kept = %d\ntools.wait()" % count)
            call = self.host.until_called(count)[-1][2]
            self.keeper.interrupt()
            told = self.host.until_idle()
            self.assertEqual(told.outcome, "interrupted", told.traceback)
            self.assertEqual(self.host.cancelled, [call["call"]])
            self.host.cancelled.clear()
            self.host.answer(call, "late")
            self.check("kept, tools.echo(value=5)", "(%d, 5)" % count)
            self.host.calls.pop()

    def test_code_that_catches_an_interrupt_can_call_again(self):
        self.keeper.start("try: tools.wait()\nexcept KeyboardInterrupt: pass\ntools.echo(value='cleaned')")
        self.host.until_called(1)
        self.keeper.interrupt()
        self.assertEqual(self.host.until_idle().result, "'cleaned'\n")

    def test_interrupts_at_any_moment_leave_the_worker_whole(self):
        self.run_code("tools.echo()")
        for round in range(200):
            self.keeper.start("for i in range(40): assert tools.echo(value=i) == i")
            end = time.perf_counter() + round * 2e-5
            while time.perf_counter() < end:
                if self.keeper.said or round % 2:
                    break
            self.keeper.interrupt()
            told = self.host.until_idle()
            self.assertIn(told.outcome, ("ok", "interrupted"), told.traceback)
        self.check("[tools.echo(value=i) for i in range(3)]", "[0, 1, 2]")

    def test_a_timeout_of_the_codes_own_ends_the_wait(self):
        self.run_code(
            "import signal\ndef late(*_): raise TimeoutError\n_ = signal.signal(signal.SIGALRM, late)"
        )
        for _ in range(5):
            self.keeper.start("try: tools.wait()\nexcept TimeoutError: print('too slow')\ntools.echo(value=7)")
            _, _, call = self.host.until_called(len(self.host.calls) + 1)[-1]
            self.until_asleep()
            os.kill(self.keeper.process.pid, signal.SIGALRM)
            told = self.host.until_idle()
            self.assertEqual((told.result, told.printed), ("7\n", "too slow\n"), told.traceback)
            self.assertEqual(self.host.cancelled, [call["call"]])
            self.host.cancelled.clear()

    def test_alarms_at_any_moment_lose_no_answer(self):
        self.run_code(
            "import signal\nclass Alarm(Exception): pass\n"
            "def ring(*_): raise Alarm\n_ = signal.signal(signal.SIGALRM, ring)\ntools.echo()"
        )
        self.check(
            "rung = 0\n"
            "for i in range(1500):\n"
            "    try:\n"
            "        signal.setitimer(signal.ITIMER_REAL, i * 4e-7 + 1e-6)\n"
            "        assert tools.echo(value=i) == i\n"
            "        signal.setitimer(signal.ITIMER_REAL, 0)\n"
            "    except Alarm: rung += 1\n"
            "    signal.setitimer(signal.ITIMER_REAL, 0)\n"
            "rung > 0", "True",
        )

    def test_a_signal_handler_may_call_a_tool_while_the_code_waits_for_one(self):
        self.keeper.start(
            "import os, signal\n"
            "def ask(*_): print('in the handler:', tools.echo(value=1))\n"
            "_ = signal.signal(signal.SIGALRM, ask)\n"
            "tools.echo; tools.wait()"
        )
        (_, _, call), = self.host.until_called(1)
        self.until_asleep()
        self.host.tools["echo"] = lambda value: self.host.answer(call, "of the code") or value
        os.kill(self.keeper.process.pid, signal.SIGALRM)
        told = self.host.until_idle()
        self.assertEqual((told.result, told.printed), ("'of the code'\n", "in the handler: 1\n"))

    def until_asleep(self):
        """Wait until the worker's main thread sleeps: its call is sent, so it waits."""
        deadline = time.monotonic() + 10
        state = ""
        while state != "S":
            self.assertLess(time.monotonic(), deadline)
            with open("/proc/%d/stat" % self.keeper.process.pid) as file:
                state = file.read().rpartition(")")[2].split()[0]

    def test_shutdown_ends_a_wait_for_a_tool(self):
        for code in ("tools.wait()", "await tools.wait()"):
            with self.subTest(code=code):
                self.keeper.start(code)
                self.host.until_called(len(self.host.calls) + 1)
                self.keeper.send(kind="shutdown", grace_ms=1000)
                self.assertEqual(self.keeper.until("idle").outcome, "interrupted")
                self.assertEqual(self.keeper.ended(), 0)
            self.keeper.close()
            self.setUp()

    def test_the_end_of_the_stream_ends_a_wait_for_a_tool(self):
        for code in ("tools.wait()", "await tools.wait()",
                     "import threading\nt = threading.Thread(target=lambda: tools.wait()); t.start(); t.join()"):
            self.keeper.start(code)
            self.host.until_called(1)
            self.keeper.socket.close()
            self.assertEqual(self.keeper.process.wait(10), 0)
            self.setUp()


if __name__ == "__main__":
    unittest.main()
