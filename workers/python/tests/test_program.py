"""Turns with a context: programs with arguments, and cells with a directory, variables and a name."""

import json
import os
import subprocess
import tempfile
import unittest

from keeper import PYTHON, Keeper, Told


class WithPlace(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = os.path.realpath(place.name)
        self.keeper = Keeper(cwd=self.place)
        self.addCleanup(self.keeper.close)

    def write(self, name, text):
        path = os.path.join(self.place, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        return path

    def start(self, code, **context):
        self.keeper.turn += 1
        turn = self.keeper.turn
        self.keeper.send(code.encode(), kind="turn_start", turn=turn, context=context)

    def run_in(self, code, **context):
        self.start(code, **context)
        return Told(self.keeper.until("idle", turn=self.keeper.turn).events)

    def run_program(self, code, *args, name="job.py"):
        path = self.write(name, code)
        return self.run_in(code, file=path, args=list(args), program=True)


_HOOK = (
    "import sys\ndef hook(kind, error, trace):\n    %s\n"
    "sys.excepthook = hook\ndef f():\n    1 / 0\nf()"
)
SAME = {
    "arguments": "import sys, os\nprint(sys.argv[1:], os.path.basename(sys.argv[0]))",
    "names": "print(__name__, __file__, __doc__, __spec__)",
    "docstring": "'what it does'\nprint(__doc__)",
    "no echo": "1 + 1",
    "exit": "import sys\nsys.exit(3)",
    "large exit": "import sys\nsys.exit(257)",
    "exit with a message": "import sys\nsys.exit('no')",
    "exit without": "exit()",
    "error": "def f():\n    return 1 / 0\n\nf()",
    "syntax error": "x = = 1",
    "top-level await": "await x",
    "cause": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('x') from e",
    "atexit": (
        "import atexit, sys\natexit.register(print, 'first')\n"
        "@atexit.register\ndef last():\n    print('last')\nsys.exit(4)"
    ),
    "atexit after an error": "import atexit\natexit.register(print, 'done')\n1 / 0",
    "atexit that registers": (
        "import atexit\natexit.register(lambda: atexit.register(print, 'inner'))\n"
        "atexit.register(print, 'gone')\natexit.unregister(print)"
    ),
    "threads": (
        "import threading, time\ndef work():\n    time.sleep(0.2)\n    print('worked')\n"
        "threading.Thread(target=work).start()\nprint('end')"
    ),
    "daemons": (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\nprint('end')"
    ),
    "executor": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "ThreadPoolExecutor().submit(print, 'worked')"
    ),
    "threads before atexit": (
        "import atexit, threading, time\natexit.register(print, 'exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()"
    ),
    "child": (
        "import os, atexit\natexit.register(lambda: print('end', flush=True))\n"
        "pid = os.fork()\nif pid:\n    os.waitpid(pid, 0)"
    ),
    "processes": (
        "import multiprocessing\nif __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('fork')\n"
        "    child = context.Process(target=print, args=('child',))\n"
        "    child.start()\n    child.join()\n    print(child.exitcode)"
    ),
    "hook": _HOOK % "print(kind.__name__, error, trace.tb_lineno, trace is error.__traceback__)",
    "hook that prints the traceback": _HOOK % "sys.__excepthook__(kind, error, trace)",
    "hook that formats the traceback": _HOOK % "import traceback; traceback.print_exception(error)",
    "hook that raises": _HOOK % "raise ValueError('no hook')",
    "hook that exits": _HOOK % "sys.exit(5)",
    "hook that exits with a message": _HOOK % "sys.exit('the reason')",
    "hook that exits well": _HOOK % "sys.exit()",
    "hook and atexit": "import atexit\natexit.register(print, 'end')\n" + _HOOK % "print('hook')",
    "hook that is no function": "import sys\nsys.excepthook = None\n1 / 0",
    "hook that is missing": "import sys\ndel sys.excepthook\n1 / 0",
    "hook and exit": "import sys\nsys.excepthook = print\nsys.exit(3)",
    "hook in a child": (
        "import os, sys\nsys.excepthook = lambda *words: print('hook', words[0])\n"
        "pid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nelse:\n    1 / 0"
    ),
    "hooks of threads and destructors": (
        "import sys, threading\n"
        "threading.excepthook = lambda args: print('thread', args.exc_type)\n"
        "sys.unraisablehook = lambda args: print('unraisable', args.exc_type)\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()\n"
        "class Ends:\n    def __del__(self):\n        1 / 0\nEnds()"
    ),
    "path": "import sys, os\nprint(sys.path[0] == os.path.dirname(__file__))",
}


class Programs(WithPlace):
    def test_a_program_behaves_as_the_interpreter_runs_it(self):
        for what, code in SAME.items():
            with self.subTest(what):
                told = self.run_program(code, "a", "--b", "c d")
                path = os.path.join(self.place, "job.py")
                real = subprocess.run(
                    [PYTHON, path, "a", "--b", "c d"], capture_output=True, text=True, timeout=60
                )
                self.assertEqual(told.printed, real.stdout)
                self.assertEqual(told.errors + told.traceback, real.stderr)
                self.assertEqual(told.last["exit_code"], real.returncode)
                self.assertEqual(told.outcome, "ok" if real.returncode == 0 else "error")
                self.assertEqual(told.result, "")

    def test_modules_beside_the_file_can_be_imported(self):
        self.write("deep/beside.py", "name = 'beside'")
        told = self.run_program("import beside\nprint(beside.name)", name="deep/job.py")
        self.assertEqual((told.printed, told.outcome), ("beside\n", "ok"))

    def test_a_program_leaves_the_session_as_it_was(self):
        state = "import sys, os\n(sys.argv, sys.path, os.getcwd(), '__file__' in globals())"
        before = self.keeper.run(state).result
        self.run_program("import os\nx = 5\nos.chdir('/')\nimport atexit", "a")
        self.run_in("pass", cwd="/", env={"A": "1"}, file="/x/y.py", args=["1"])
        self.keeper.run("os.chdir(%r)" % self.place)
        self.assertEqual(self.keeper.run(state).result, before)
        self.assertEqual(self.keeper.run("x").result, "5\n")

    def test_the_hooks_of_a_program_end_with_it(self):
        code = (
            "import sys, threading\nsys.excepthook = sys.unraisablehook = print\n"
            "threading.excepthook = print"
        )
        self.run_program(code)
        look = "import sys, threading\n"
        look += "print in (sys.excepthook, sys.unraisablehook, threading.excepthook)"
        self.assertEqual(self.keeper.run(look).result, "False\n")
        self.assertIn("ZeroDivisionError", self.run_program("1 / 0").traceback)

    def test_a_hook_can_be_interrupted(self):
        code = (
            "import sys, time\ndef hook(*words):\n    print('on')\n    time.sleep(600)\n"
            "sys.excepthook = hook\n1 / 0"
        )
        self.start(code, file=self.write("job.py", code), program=True)
        self.keeper.until_printed("on\n")
        self.keeper.interrupt()
        told = self.keeper.until("idle", turn=self.keeper.turn)
        self.assertEqual((told.outcome, told.last["exit_code"]), ("interrupted", 130))

    def test_an_executor_works_after_a_program_that_used_one(self):
        code = (
            "from concurrent.futures import ThreadPoolExecutor as P\n"
            "print(P().submit(len, 'ab').result())"
        )
        for _ in range(2):
            self.assertEqual(self.run_program(code).printed, "2\n")
        self.assertEqual(self.keeper.run(code).printed, "2\n")

    def test_an_atexit_function_that_raises_prints_and_the_next_ones_run(self):
        code = "import atexit\natexit.register(print, 'next')\natexit.register(lambda: 1 / 0)"
        told = self.run_program(code)
        self.assertEqual((told.printed, told.last["exit_code"]), ("next\n", 0))
        self.assertIn("Exception ignored in atexit callback", told.errors)
        self.assertIn("ZeroDivisionError", told.errors)

    def test_a_wait_for_threads_and_an_atexit_function_can_be_interrupted(self):
        stuck = "import atexit, threading, time\ndef stuck():\n    print('on')\n    time.sleep(600)\n"
        for code in (
            stuck + "threading.Thread(target=stuck).start()",
            stuck + "atexit.register(stuck)",
        ):
            path = self.write("job.py", code)
            self.start(code, file=path, program=True)
            self.keeper.until_printed("on\n")
            self.keeper.interrupt()
            told = self.keeper.until("idle", turn=self.keeper.turn)
            self.assertEqual((told.outcome, told.last["exit_code"]), ("interrupted", 130))

    def test_a_handler_decides_the_exit_status_of_an_interrupted_program(self):
        code = (
            "import sys, time\ntry:\n    print('on')\n    time.sleep(600)\n"
            "except KeyboardInterrupt:\n    sys.exit(7)"
        )
        self.start(code, file=self.write("job.py", code), program=True)
        self.keeper.until_printed("on\n")
        self.keeper.interrupt()
        told = self.keeper.until("idle", turn=self.keeper.turn)
        self.assertEqual((told.outcome, told.last["exit_code"]), ("interrupted", 7))


class Cells(WithPlace):
    def test_directory_and_variables_are_those_of_the_turn(self):
        code = "import os\n(os.getcwd(), os.environ.get('A'), os.environ.get('HOME'))"
        before = self.keeper.run(code).result
        os.mkdir(os.path.join(self.place, "sub"))
        sub = os.path.join(self.place, "sub")
        told = self.run_in(code, cwd=sub, env={"A": "1", "HOME": "/h"})
        self.assertEqual(told.result, "%r\n" % ((sub, "1", "/h"),))
        self.assertEqual(self.run_in("1 / 0", cwd=sub, env={"A": "2"}).outcome, "error")
        self.assertEqual(self.keeper.run(code).result, before)

    def test_the_name_of_a_span_is_that_of_the_turn(self):
        code = "import os, subprocess, sys\nsubprocess.run(['/bin/sh', '-c', 'echo $TRACEPARENT'])"
        code += "\n(os.environ.get('TRACEPARENT'), os.environ.get('A'), sys.argv)"

        def check(told, name, other=None, argv=("",)):
            self.assertEqual(told.printed, "%s\n" % (name or ""))
            self.assertEqual(told.result, "%r\n" % ((name, other, list(argv)),))

        self.keeper.run("import os\nos.environ['TRACEPARENT'] = 'own'")
        for before in "own", None:
            check(self.keeper.run(code), before)
            for name in "one", "two":
                check(self.run_in(code, env={"TRACEPARENT": name}), name)
            check(self.run_in(code, env={"TRACEPARENT": "three", "A": "1"}), "three", "1", ["-c"])
            check(self.run_in(code, env={"A": "1"}), before, "1", ["-c"])
            self.run_in("del os.environ['TRACEPARENT']", env={"TRACEPARENT": "four"})
            check(self.keeper.run(code), before)
            self.keeper.run("os.environ.pop('TRACEPARENT', None)")

    def test_the_name_of_a_span_needs_no_environment(self):
        self.keeper.run("import os\nkept, os.environ = os.environ, None")
        for _ in range(2):
            self.assertEqual(self.run_in("6 * 7", env={"TRACEPARENT": "one"}).result, "42\n")
        self.assertEqual(self.keeper.run("os.environ = kept\n6 * 7").result, "42\n")

    def test_a_directory_that_is_not_there_is_an_error_of_the_turn(self):
        told = self.run_in("print(1)", cwd=os.path.join(self.place, "none"), env={"A": "1"})
        self.assertEqual((told.printed, told.error["name"]), ("", "FileNotFoundError"))
        self.assertEqual(self.keeper.run("import os\n'A' in os.environ").result, "False\n")

    def test_a_file_names_the_cell_in_tracebacks(self):
        told = self.run_in("x = 1\n1 / 0", file="/notes/sums.py")
        self.assertIn('File "/notes/sums.py", line 2', told.traceback)
        self.assertIn("    1 / 0\n", told.traceback)
        self.assertNotIn("windlass_worker", told.traceback)

    def test_code_of_an_option_has_the_arguments_of_the_interpreter(self):
        told = self.run_in("import sys\nsys.argv", args=["a", "-b"])
        self.assertEqual(told.result, "['-c', 'a', '-b']\n")
        told = self.run_in("import sys\nsys.argv", file="-", args=["a"])
        self.assertEqual(told.result, "['-', 'a']\n")
        self.assertIn('File "<stdin>", line 1', self.run_in("1 / 0", file="-").traceback)


class Replies(WithPlace):
    def test_each_turn_has_an_exit_code(self):
        for code, status in (
            ("1", 0),
            ("1 / 0", 1),
            ("import sys; sys.exit(3)", 3),
            ("exit()", 0),
            ("raise SystemExit('x')", 1),
            ("class E(SystemExit):\n    code = property(lambda self: 1 / 0)\nraise E()", 1),
        ):
            self.assertEqual(self.keeper.run(code).last["exit_code"], status, code)

    def test_a_plain_value_comes_as_json(self):
        deep = "1"
        for _ in range(32):
            deep = "[%s]" % deep
        for code, value in (
            ("print()", None),
            ("True", True),
            ("-7", -7),
            ("2 ** 63", 2**63),
            ("0.1 + 0.2", 0.1 + 0.2),
            ("'é\\n'", "é\n"),
            ("(1, [2.5, {'a': None}])", [1, [2.5, {"a": None}]]),
            ("{}", {}),
            (deep, json.loads(deep)),
        ):
            told = self.keeper.run(code)
            self.assertIn("value", told.last, code)
            self.assertEqual(told.last["value"], value, code)

    def test_other_values_have_no_json(self):
        for code in (
            "x = 1",
            "2 ** 64",
            "-2 ** 63 - 1",
            "float('nan')",
            "[float('inf')]",
            "{1: 2}",
            "{'a': {1}}",
            "'\\ud800'",
            "object()",
            "type('L', (list,), {})()",
            "'x' * 20_000",
            "'\\n' * 10_000",
            "list(range(9000))",
            "[" * 33 + "]" * 33,
            "l = []; l.append(l); l",
            "1 / 0",
        ):
            told = self.keeper.run(code)
            self.assertNotIn("value", told.last, code)


if __name__ == "__main__":
    unittest.main()
