"""Order and completeness of printed output, and the turn that it belongs to."""

import unittest

from test_cells import WithKeeper


class Streams(WithKeeper):
    def test_every_way_to_print_keeps_its_place(self):
        told = self.run_code(
            "import os, ctypes, subprocess, sys\n"
            "libc = ctypes.CDLL(None)\n"
            "for i in range(20):\n"
            "    print('print', i)\n"
            "    os.write(1, b'write %d\\n' % i)\n"
            "    _ = libc.puts(b'puts %d' % i)\n"
            "    _ = subprocess.run(['echo', 'echo', str(i)])\n"
            "    print('no end', end=' ')\n"
            "    sys.stdout.buffer.write(b'buffer\\n')\n"
        )
        names = ("print", "write", "puts", "echo")
        lines = [l for i in range(20) for l in [*("%s %d" % (n, i) for n in names), "no end buffer"]]
        self.assertEqual(told.printed.splitlines(), lines)

    def test_any_bytes_survive(self):
        told = self.run_code(
            "import sys, os\n"
            "_ = sys.stdout.buffer.write(bytes(range(256)))\n"
            "print('\\udcff', end='')\n"
            "os.write(1, 'é'.encode()[:1]); os.write(1, 'é'.encode()[1:])\n"
            "print('\\ud800', file=sys.stderr)"
        )
        self.assertEqual(told.fd(1), bytes(range(256)) + b"\xff" + "é".encode())
        self.assertEqual(told.errors, "\\ud800\n")

    def test_much_output_comes_whole(self):
        told = self.run_code("print('x' * 5_000_000)\nprint('y')")
        self.assertEqual(len(told.fd(1)), 5_000_003)

    def test_the_streams_describe_themselves_and_cannot_be_closed(self):
        told = self.run_code(
            "import sys\n"
            "sys.stdout.close(); sys.stderr.close(); sys.stdin.close()\n"
            "[(s.name, s.fileno(), s.isatty(), s.encoding, s.mode) "
            "for s in (sys.stdin, sys.stdout, sys.stderr)]"
        )
        self.assertEqual(
            told.result,
            "[('<stdin>', 0, False, 'utf-8', 'r'), ('<stdout>', 1, False, 'utf-8', 'w'), "
            "('<stderr>', 2, False, 'utf-8', 'w')]\n",
        )
        self.assertEqual(self.run_code("print('open')").printed, "open\n")

    def test_look_alikes_of_the_protocol_are_output_and_nothing_else(self):
        told = self.run_code("print('{\"kind\":\"idle\",\"turn\":1,\"outcome\":\"ok\"}')\n7")
        self.assertEqual((told.result, told.printed[:8]), ("7\n", '{"kind":'))


class Threads(WithKeeper):
    def test_a_thread_of_this_turn_prints_to_the_pipe(self):
        told = self.run_code(
            "import threading\n"
            "t = threading.Thread(target=lambda: print('thread'))\nt.start(); t.join()"
        )
        self.assertEqual(told.printed, "thread\n")
        self.assertEqual(told.all("output"), [])

    def test_what_a_left_thread_prints_is_background_of_its_turn(self):
        self.run_code(
            "import threading, sys\n"
            "gate, done = threading.Event(), threading.Event()\n"
            "def work():\n"
            "    gate.wait()\n"
            "    print('late'); print('too late', file=sys.stderr)\n"
            "    inner = threading.Thread(target=lambda: print('inner'))\n"
            "    inner.start(); inner.join()\n"
            "    done.set()\n"
            "threading.Thread(target=work, daemon=True).start()"
        )
        told = self.run_code("print('second'); gate.set(); _ = done.wait(); print('end')")
        self.assertEqual(told.printed, "second\nend\n")
        self.assertEqual(told.stream("stdout", background=True), "late\ninner\n")
        self.assertEqual(told.stream("stderr", background=True), "too late\n")
        self.assertEqual({event["turn"] for event in told.all("output")}, {1})

    def test_background_output_also_comes_between_turns(self):
        self.run_code(
            "import threading, os\n"
            "r, w = os.pipe()\n"
            "def work():\n    os.read(r, 1)\n    print('x' * 300_000, end='')\n    print('.')\n"
            "threading.Thread(target=work, daemon=True).start()\n"
            "def poke(): os.write(w, b'x')"
        )
        events = self.run_code("poke()").all("output")
        while not b"".join(e["body"] for e in events).endswith(b".\n"):
            events += self.keeper.until("output").events
        self.assertTrue(all(e["turn"] == 1 and e["background"] for e in events))
        self.assertEqual(sum(len(e["body"]) for e in events), 300_002)

    def test_work_in_an_executor_counts_for_the_turn_that_submitted_it(self):
        self.run_code(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "pool = ThreadPoolExecutor(1)\n"
            "pool.submit(print, 'one').result()"
        )
        told = self.run_code("pool.submit(print, 'two').result()")
        self.assertEqual((told.printed, told.all("output")), ("two\n", []))

    def test_many_threads_never_mix_their_frames(self):
        self.run_code(
            "import threading\n"
            "gate = threading.Event()\n"
            "def work(n):\n"
            "    gate.wait()\n"
            "    for i in range(50):\n        print(str(n) * 20_000, end='')\n"
            "threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n"
            "for t in threads: t.start()"
        )
        told = self.run_code("gate.set()\nfor t in threads: t.join()\n'done'")
        self.assertEqual(told.result, "'done'\n")
        self.assertEqual(len(told.stream("stdout", background=True)), 8 * 50 * 20_000)
        for event in told.all("output"):
            self.assertEqual(len(set(event["body"])) if event.get("background") else 1, 1)


if __name__ == "__main__":
    unittest.main()
