"""What a turn runs, shows and leaves: statements, values, errors, the namespace, `await`."""

import unittest

from keeper import Keeper


class WithKeeper(unittest.TestCase):
    def setUp(self):
        self.keeper = Keeper()
        self.addCleanup(self.keeper.close)
        self.run_code = self.keeper.run


class Values(WithKeeper):
    def test_only_a_last_expression_is_shown(self):
        for code, shown in (
            ("1 + 1", "2\n"),
            ("x = 3\nx", "3\n"),
            ("x; x + 1", "4\n"),
            ("for i in range(3): i", ""),
            ("None", ""),
            ("'\\\\'", "'\\\\'\n"),
            ("", ""),
            ("# nothing", ""),
            ("'é \\ud800'", "'é \\ud800'\n"),
        ):
            told = self.run_code(code)
            self.assertEqual((told.result, told.outcome), (shown, "ok"), code)

    def test_the_value_is_kept_as_underscore(self):
        self.run_code("40 + 2")
        self.assertEqual(self.run_code("_ + 1").result, "43\n")

    def test_a_replaced_display_hook_is_respected(self):
        self.run_code("import sys\nsys.displayhook = lambda value: print('mine', value)")
        told = self.run_code("5")
        self.assertEqual((told.result, told.printed), ("", "mine 5\n"))

    def test_a_large_value_comes_whole_in_several_frames(self):
        told = self.run_code("'x' * 1_000_000")
        self.assertEqual(len(told.result), 1_000_003)
        self.assertGreater(len(told.all("output")), 4)

    def test_large_source_comes_in_several_frames(self):
        told = self.run_code("x = '" + "y" * 900_000 + "'\nlen(x)")
        self.assertEqual(told.result, "900000\n")


class Errors(WithKeeper):
    def test_a_traceback_quotes_the_cell_and_hides_the_worker(self):
        self.run_code("def divide(a):\n    return a / 0")
        told = self.run_code("x = 1\ndivide(x)")
        self.assertEqual(told.outcome, "error")
        self.assertEqual(told.error, {"name": "ZeroDivisionError", "message": "division by zero"})
        text = told.traceback
        self.assertTrue(text.startswith("Traceback (most recent call last):\n"), text)
        for part in ('File "<cell 2>", line 2, in <module>', "divide(x)", 'File "<cell 1>", line 2'):
            self.assertIn(part, text)
        self.assertIn("    return a / 0\n", text)
        self.assertNotIn("windlass_worker", text)

    def test_a_syntax_error_shows_its_line(self):
        told = self.run_code("x = 1\nif x print(2)")
        self.assertEqual(told.error["name"], "SyntaxError")
        self.assertIn('File "<cell 1>", line 2', told.traceback)
        self.assertIn("if x print(2)", told.traceback)

    def test_chained_errors_are_both_shown(self):
        told = self.run_code("try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('k') from e")
        self.assertIn("ZeroDivisionError", told.traceback)
        self.assertIn("direct cause", told.traceback)
        self.assertEqual(told.error["name"], "KeyError")

    def test_a_group_of_errors_is_shown_with_its_members(self):
        told = self.run_code("raise ExceptionGroup('all', [ValueError('one'), KeyError('two')])")
        if told.error["name"] != "NameError":
            self.assertEqual(told.error["name"], "ExceptionGroup")
            for part in ("ValueError: one", "KeyError: 'two'", "<cell 1>"):
                self.assertIn(part, told.traceback)

    def test_what_is_printed_before_an_error_is_kept(self):
        told = self.run_code("print('before')\nraise ValueError('after')")
        self.assertEqual(told.printed, "before\n")

    def test_no_error_ends_the_worker(self):
        for code, name in (
            ("def f(): f()\nf()", "RecursionError"),
            ("[0] * 10**18", "MemoryError"),
            ("class R:\n    def __repr__(self): raise ValueError('bad repr')\nR()", "ValueError"),
            ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E"),
            ("raise SystemError('x' * 10**6)", "SystemError"),
            ("raise BaseException('base')", "BaseException"),
            ("raise GeneratorExit", "GeneratorExit"),
            ("'\\0'\0", None),
            ("(" * 2000 + ")" * 2000, None),
            ("raise ValueError('\\ud800')", "ValueError"),
            ("x" * 300 + " = type('N' * 100_000, (Exception,), {})\nraise " + "x" * 300, "N" * 200),
        ):
            told = self.run_code(code)
            self.assertEqual(told.outcome, "error", code[:60])
            if name:
                self.assertEqual(told.error["name"], name)
            self.assertLessEqual(len(told.error["message"]), 4096)
        self.assertEqual(self.run_code("1 + 1").result, "2\n")

    def test_leaving_by_exit_ends_the_turn_only(self):
        self.run_code("import sys\nkept = 7")
        for code, outcome, error, errors in (
            ("sys.exit()", "ok", None, ""),
            ("exit(0)", "ok", None, ""),
            ("quit(3)", "error", {"name": "SystemExit", "message": "3"}, ""),
            (
                "sys.exit('no luck')",
                "error",
                {"name": "SystemExit", "message": "no luck"},
                "no luck\n",
            ),
        ):
            told = self.run_code(code)
            self.assertEqual((told.outcome, told.error), (outcome, error), code)
            self.assertEqual(told.errors, errors, code)
        self.assertEqual(self.run_code("kept").result, "7\n")
        self.assertEqual(self.run_code("input()", b"still\n").result, "'still'\n")

    def test_the_post_mortem_debugger_finds_the_error(self):
        self.run_code("def f(secret):\n    1 / 0")
        self.run_code("f(42)")
        told = self.run_code("import pdb; pdb.pm()", b"p secret\n", b"list\n", b"q\n")
        self.assertIn("42\n", told.printed)
        self.assertIn("->", told.printed)


class Namespace(WithKeeper):
    def test_nothing_of_the_worker_is_in_it(self):
        told = self.run_code("sorted(globals())")
        self.assertEqual(
            told.result,
            "['__builtins__', '__doc__', '__loader__', '__name__', '__package__', '__spec__']\n",
        )
        self.assertEqual(self.run_code("__name__, '__file__' in globals()").result, "('__main__', False)\n")

    def test_classes_of_a_cell_are_those_of_main(self):
        told = self.run_code(
            "import pickle, dataclasses, typing, sys\n"
            "@dataclasses.dataclass\n"
            "class Point:\n    x: int\n    y: 'Point' = None\n"
            "assert pickle.loads(pickle.dumps(Point(1))) == Point(1)\n"
            "assert sys.modules['__main__'].Point is Point\n"
            "typing.get_type_hints(Point)['y'] is Point"
        )
        self.assertEqual(told.result, "True\n", told.traceback)

    def test_shadowed_builtins_and_patched_modules_do_not_reach_the_worker(self):
        self.run_code(
            "len = repr = open = print = isinstance = 3\n"
            "import os, json, sys\n"
            "os.write = os._exit = json.loads = json.dumps = None\n"
            "del os"
        )
        self.assertEqual(self.run_code("1 + 1").result, "2\n")
        self.assertEqual(self.run_code("1 / 0").error["name"], "ZeroDivisionError")

    def test_a_future_statement_holds_for_later_cells(self):
        self.run_code("from __future__ import annotations")
        told = self.run_code("def f(a: nowhere): pass\nf.__annotations__")
        self.assertEqual(told.result, "{'a': 'nowhere'}\n")

    def test_sources_are_found_and_bounded(self):
        told = self.run_code("import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))")
        self.assertIn("def f():\n    return 1\n", told.printed)
        self.keeper.turn = 5000
        for _ in range(1010):
            self.run_code("1")
        told = self.run_code("import linecache\nlen([n for n in linecache.cache if n[:5] == '<cell'])")
        self.assertEqual(told.result, "1000\n")

    def test_modules_of_the_working_directory_are_imported(self):
        import tempfile

        with tempfile.TemporaryDirectory() as directory:
            with open(directory + "/beside.py", "w") as file:
                file.write("value = 9\n")
            with Keeper(cwd=directory) as keeper:
                self.assertEqual(keeper.run("import beside\nbeside.value").result, "9\n")
                self.assertEqual(keeper.run("import sys\nsys.path[0]").result, "''\n")


class Awaiting(WithKeeper):
    def test_top_level_await_runs_on_one_loop(self):
        self.run_code("import asyncio\nloop = asyncio.get_running_loop()\nawait asyncio.sleep(0)")
        self.assertEqual(self.run_code("await asyncio.sleep(0, 5)").result, "5\n")
        told = self.run_code("await asyncio.sleep(0)\nasyncio.get_running_loop() is loop")
        self.assertEqual(told.result, "True\n", told.traceback)

    def test_an_error_after_await_shows_the_cell_alone(self):
        told = self.run_code("import asyncio\nawait asyncio.sleep(0)\n1 / 0")
        self.assertIn('File "<cell 1>", line 3', told.traceback)
        self.assertNotIn("base_events", told.traceback)

    def test_tasks_left_behind_are_cancelled_before_idle(self):
        told = self.run_code(
            "import asyncio\n"
            "async def forever():\n"
            "    try:\n        await asyncio.sleep(1000)\n"
            "    finally:\n        print('cancelled')\n"
            "task = asyncio.create_task(forever())\n"
            "await asyncio.sleep(0)"
        )
        self.assertEqual(told.printed, "cancelled\n")
        self.assertEqual(self.run_code("task.cancelled()").result, "True\n")

    def test_a_task_that_refuses_to_end_is_left_with_its_loop(self):
        told = self.run_code(
            "import asyncio\n"
            "async def stubborn():\n"
            "    while True:\n"
            "        try:\n            await asyncio.sleep(1000)\n"
            "        except asyncio.CancelledError:\n            pass\n"
            "task = asyncio.create_task(stubborn())\n"
            "await asyncio.sleep(0)"
        )
        self.assertEqual(told.outcome, "ok")
        self.assertEqual(self.run_code("await asyncio.sleep(0, 'new loop')").result, "'new loop'\n")

    def test_asyncio_run_works_between_awaits(self):
        self.run_code("import asyncio\nasync def f(): return 1")
        for code in ("await f()", "asyncio.run(f())", "await f()"):
            self.assertEqual(self.run_code(code).result, "1\n")


if __name__ == "__main__":
    unittest.main()
