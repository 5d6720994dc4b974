"""Every way of asking for input ends in `stdin_wait`, and the answer continues the same turn."""

import unittest

from test_cells import WithKeeper


class Asking(WithKeeper):
    def test_input_sends_its_prompt_and_returns_the_line(self):
        told = self.run_code("input('name? ')", b"Ada\n")
        (wait,) = told.all("stdin_wait")
        self.assertEqual((wait["prompt"], wait["secret"], wait["turn"]), ("name? ", False, 1))
        self.assertEqual((told.result, told.printed), ("'Ada'\n", ""))

    def test_each_reader_gets_what_it_asked_for(self):
        for code, answers, shown in (
            ("input()", [b"no newline"], "'no newline'"),
            ("input()", [b""], "''"),
            ("input()", [b"dos\r\n"], "'dos'"),
            ("input(), input()", [b"one\ntwo\n"], "('one', 'two')"),
            ("sys.stdin.readline()", [b"a line\n"], "'a line\\n'"),
            ("sys.stdin.readline(3), sys.stdin.readline()", ["äöüß\n".encode()], "('äöü', 'ß\\n')"),
            ("sys.stdin.read(5)", [b"abc", b"defg"], "'abcde'"),
            ("sys.stdin.read(3)", ["aä".encode()[:2], "aä€".encode()[2:]], "'aä€'"),
            ("sys.stdin.buffer.read(10)", [b"abc"], "b'abc'"),
            ("sys.stdin.buffer.read(3)", [b"", b"abcd"], "b'abc'"),
            ("sys.stdin.buffer.read(2), sys.stdin.buffer.read(4)", [b"abc", b"def"], "(b'ab', b'cdef')"),
            ("b = bytearray(9)\nsys.stdin.buffer.readinto(b), bytes(b[:4])", [b"abc"], "(3, b'abc\\x00')"),
            ("sys.stdin.buffer.read(0)", [], "b''"),
            ("sys.stdin.buffer.readline()", [b"ab\ncd"], "b'ab\\n'"),
            ("sys.stdin.buffer.read1()", [b"ab"], "b'ab'"),
            ("os.read(0, 10)", [b"abc"], "b'abc'"),
            ("os.read(0, 2), os.read(0, 9)", [b"abc"], "(b'ab', b'c')"),
            ("b = [bytearray(2), bytearray(9)]\nos.readv(0, b), b", [b"abc"], None),
            ("open(0).readline()", [b"x\n"], "'x\\n'"),
            ("os.fdopen(0, 'rb').read(2)", [b"xy"], "b'xy'"),
            ("next(sys.stdin)", [b"it\n"], "'it\\n'"),
        ):
            told = self.run_code("import os, sys\n" + code, *answers)
            if shown is not None:
                self.assertEqual(told.result, shown + "\n", code + told.traceback)
            self.assertEqual(len(told.all("stdin_wait")), len(answers), code)

    def test_reading_to_the_end(self):
        for code, shown in (
            ("sys.stdin.read()", "'ab\\ncd'"),
            ("[line for line in sys.stdin]", "['ab\\n', 'cd']"),
            ("sys.stdin.buffer.read()", "b'ab\\ncd'"),
            ("open(0).read()", "'ab\\ncd'"),
            ("sys.stdin.read(100)", "'ab\\ncd'"),
            ("import fileinput; list(fileinput.input('-'))", "['ab\\n', 'cd']"),
        ):
            self.keeper.start("import sys\n" + code)
            self.keeper.until("stdin_wait")
            self.keeper.answer(b"ab\ncd", eof=True)
            self.assertEqual(self.keeper.until("idle").result, shown + "\n", code)

    def test_the_end_of_input_is_an_error_for_input_and_empty_for_others(self):
        for code, name, shown in (
            ("input()", "EOFError", ""),
            ("import sys; sys.stdin.readline(), sys.stdin.read()", None, "('', '')\n"),
            ("import os; os.read(0, 5)", None, "b''\n"),
        ):
            self.keeper.start(code)
            self.keeper.until("stdin_wait")
            self.keeper.answer(b"", eof=True)
            told = self.keeper.until("idle")
            self.assertEqual((told.error or {}).get("name"), name)
            self.assertEqual(told.result, shown)
        self.assertEqual(self.run_code("input()", b"the end is forgotten\n").outcome, "ok")

    def test_getpass_is_secret(self):
        told = self.run_code("import getpass\ngetpass.getpass('key: ')", b"s3cret\n")
        (wait,) = told.all("stdin_wait")
        self.assertEqual((wait["prompt"], wait["secret"]), ("key: ", True))
        self.assertEqual(told.result, "'s3cret'\n")

    def test_the_debugger_can_be_driven(self):
        told = self.run_code("x = 41\nbreakpoint()\nx += 1\nx", b"p x\n", b"x = 9\n", b"c\n")
        self.assertEqual([w["prompt"] for w in told.all("stdin_wait")], ["(Pdb) "] * 3)
        self.assertIn("41\n", told.printed)
        self.assertRegex(told.printed, r"-> (x \+= 1|breakpoint\(\))")
        self.assertEqual(told.result, "10\n")

    def test_a_large_answer_in_many_frames_is_one_answer(self):
        told = self.run_code("len(input())", b"x" * 1_000_000)
        self.assertEqual(told.result, "1000000\n")

    def test_a_large_answer_to_code_that_prints_first(self):
        told = self.run_code("line = input()\nprint('y' * 1_000_000)\nlen(line)", b"x" * 1_000_000)
        self.assertEqual(told.result, "1000000\n")


class Boundaries(WithKeeper):
    def test_left_over_input_never_reaches_the_next_turn(self):
        self.run_code("input()", b"one\ntwo\nthree")
        told = self.run_code("input()", b"mine\n")
        self.assertEqual(told.result, "'mine'\n")

    def test_input_for_another_turn_is_dropped(self):
        self.keeper.start("input()")
        self.keeper.until("stdin_wait")
        self.keeper.send(b"stale\n", kind="turn_input", turn=77)
        self.keeper.answer(b"fresh\n")
        self.assertEqual(self.keeper.until("idle").result, "'fresh'\n")

    def test_input_that_came_early_needs_no_wait(self):
        self.keeper.start("import os\nprint('go')\n_ = os.popen('read x < /dev/null').read()\ninput()")
        self.keeper.answer(b"early\n")
        told = self.keeper.until("idle")
        self.assertEqual(told.result, "'early'\n")

    def test_a_replaced_stdin_is_respected(self):
        told = self.run_code("import io, sys\nsys.stdin = io.StringIO('mine\\n')\ninput('p> ')")
        self.assertEqual((told.result, told.printed), ("'mine'\n", "p> "))

    def test_a_file_put_on_descriptor_0_is_read(self):
        told = self.run_code(
            "import os\nr, w = os.pipe()\nos.write(w, b'pipe')\nold = os.dup(0)\n"
            "os.dup2(r, 0)\ndata = os.read(0, 9)\nos.dup2(old, 0)\ndata"
        )
        self.assertEqual(told.result, "b'pipe'\n")

    def test_another_thread_is_told_that_it_cannot_ask(self):
        told = self.run_code(
            "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor().submit(input).result()"
        )
        self.assertEqual(told.error["name"], "RuntimeError")
        self.assertIn("main thread", told.error["message"])

    def test_a_child_finds_its_input_at_the_end(self):
        told = self.run_code(
            "import os, subprocess, sys\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    try: input()\n"
            "    except EOFError: os._exit(4)\n"
            "    os._exit(5)\n"
            "os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), subprocess.run(['cat']).returncode"
        )
        self.assertEqual(told.result, "(4, 0)\n")

    def test_a_lone_surrogate_in_a_prompt_is_not_sent_as_json(self):
        told = self.run_code("input('\\ud800' + 'p' * 100_000)", b"\n")
        (wait,) = told.all("stdin_wait")
        self.assertTrue(wait["prompt"].startswith("\\ud800ppp"))

    def test_a_timeout_of_the_codes_own_ends_the_wait_and_loses_nothing(self):
        self.keeper.start(
            "import signal\n"
            "def late(*_): raise TimeoutError\n"
            "_ = signal.signal(signal.SIGALRM, late)\n"
            # Long enough for a slow machine to ask first.
            "signal.setitimer(signal.ITIMER_REAL, 1)\n"
            "try: input('quick! ')\nexcept TimeoutError: print('too slow')\n"
            "input('again: ')"
        )
        self.keeper.until("stdin_wait", prompt="quick! ")
        told = self.keeper.until("stdin_wait", prompt="again: ")
        self.assertEqual(told.printed, "too slow\n")
        self.keeper.answer(b"here\n")
        self.assertEqual(self.keeper.until("idle").result, "'here'\n")


if __name__ == "__main__":
    unittest.main()
