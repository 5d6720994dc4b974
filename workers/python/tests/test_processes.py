"""Children of the worker: they never reach the protocol, and every way to start them works."""

import unittest

from test_cells import WithKeeper


class Children(WithKeeper):
    def test_a_forked_child_ends_where_the_cell_ends(self):
        told = self.run_code(
            "import os\nchild = os.fork()\nif child: _, status = os.waitpid(child, 0)\n"
            "print('parent' if child else 'child')\n'value'"
        )
        self.assertEqual(sorted(told.printed.split()), ["'value'", "child", "parent"])
        self.assertEqual((told.result, len(told.all("idle"))), ("'value'\n", 1))
        self.assertEqual(self.run_code("status").result, "0\n")

    def test_a_childs_error_is_its_own(self):
        for code, status, text in (
            ("raise ValueError('in the child')", 1, "ValueError: in the child"),
            ("import sys; sys.exit(7)", 7, ""),
            ("display(3, id='x'); input()", 1, "EOFError"),
        ):
            told = self.run_code(
                "import os\nchild = os.fork()\n"
                "if not child:\n    %s\n"
                "os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])" % code
            )
            self.assertEqual(told.result, "%d\n" % status)
            self.assertIn(text, told.errors)
            self.assertNotIn("windlass_worker", told.errors)

    def test_no_child_has_the_protocol_descriptor(self):
        list_sockets = (
            "import os\n"
            "found = []\n"
            "for fd in os.listdir('/proc/self/fd'):\n"
            "    try: name = os.readlink('/proc/self/fd/' + fd)\n"
            "    except OSError: continue\n"
            "    if name.startswith('socket:'): found.append(fd)\n"
        )
        told = self.run_code(
            list_sockets + "print('worker', len(found), int(found[0]) > 40)\n"
            "import subprocess, sys\n"
            "code = %r\n"
            "subprocess.run([sys.executable, '-c', code + \"print('program', found)\"], close_fds=False)\n"
            "if not os.fork():\n"
            "    exec(code)\n    print('fork', found)\n    os._exit(0)\n"
            "_ = os.wait()" % list_sockets
        )
        self.assertEqual(told.printed, "worker 1 True\nprogram []\nfork []\n")

    def test_the_environment_names_nothing_of_ours(self):
        told = self.run_code(
            "import subprocess, sys\n"
            "subprocess.run(['env'])\n"
            "_ = subprocess.run([sys.executable, '-c', 'import sys; "
            "print(sys.flags, [p for p in sys.path if \"worker\" in p])'])"
        )
        for name in ("WINDLASS", "PYTHON", "MPLBACKEND", "windlass"):
            self.assertNotIn(name, told.printed)
        self.assertIn("[]", told.printed)

    def test_multiprocessing_works_by_fork_and_by_spawn(self):
        self.run_code("import multiprocessing, os, math\ndef square(n):\n    print('in', n)\n    return n * n")
        told = self.run_code(
            "with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(square, [1, 2, 3]))"
        )
        self.assertIn("[1, 4, 9]\n", told.printed, told.traceback)
        self.assertEqual(told.printed.count("in "), 3)
        told = self.run_code(
            "with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(math.sqrt, [4, 9]))"
        )
        self.assertEqual(told.printed, "[2.0, 3.0]\n", told.traceback + told.errors)
        told = self.run_code(
            "p = multiprocessing.get_context('fork').Process(target=square, args=(5,))\n"
            "p.start(); p.join(); p.exitcode"
        )
        self.assertEqual((told.result, told.printed), ("0\n", "in 5\n"))

    def test_a_child_sees_sigint_as_any_program_does(self):
        self.keeper.start(
            "import os, time\nchild = os.fork()\n"
            "try:\n"
            "    print('parent' if child else 'child')\n"
            "    time.sleep(100)\n"
            "except KeyboardInterrupt:\n"
            "    if not child: print('child stopped'); os._exit(0)\n"
            "    _ = os.wait()\n    raise"
        )
        # Each of the two can handle an interrupt from its line on.
        self.keeper.until_printed("parent\n")
        self.keeper.until_printed("child\n")
        self.keeper.interrupt()
        told = self.keeper.until("idle")
        self.assertEqual(told.outcome, "interrupted")
        self.assertEqual(sorted(told.printed.splitlines()), ["child", "child stopped", "parent"])


if __name__ == "__main__":
    unittest.main()
