"""Turns, input, interrupts, tools and displays in WebAssembly, and the start of the worker."""

import os
import time
import unittest
import zipfile

from pyodide_keeper import WithWorker, scratch, snapshot

from keeper import frame  # isort: skip


class Turns(WithWorker):
    def test_state_values_errors_output_and_await(self):
        self.check("x = 3\nx", "3")
        told = self.run_code("import sys\nprint('a'); print('b', file=sys.stderr); import os; os.write(1, b'c\\n'); 1/0")
        self.assertEqual((told.printed, told.errors), ("a\nc\n", "b\n"))
        self.assertEqual(told.error, {"name": "ZeroDivisionError", "message": "division by zero"})
        self.assertTrue(told.traceback.startswith('Traceback (most recent call last):\n  File "<cell 2>", line 2'))
        self.assertNotIn("windlass", told.traceback)
        self.check("import asyncio\nawait asyncio.sleep(0.01, 'slept')", "'slept'")
        self.check("async def f(): return 4\nasyncio.run(f())", "4")
        self.assertEqual(self.run_code("import sys; sys.exit(0)").outcome, "ok")
        self.assertEqual(self.run_code("sys.exit(3)").error, {"name": "SystemExit", "message": "3"})
        self.check("x", "3")

    def test_input_asks_and_passwords_are_secret(self):
        self.check("input('name? ')", "'ada'", b"ada\n")
        told = self.run_code("import getpass; getpass.getpass('key? ')", b"k\n")
        wait = told.all("stdin_wait")[0]
        self.assertEqual((wait["prompt"], wait["secret"], told.result), ("key? ", True, "'k'\n"))
        self.check("import sys; sys.stdin.readline()", r"'line\n'", b"line\n")
        self.check("import os; os.read(0, 10)", "b'abc'", b"abc")

    def test_displays(self):
        told = self.run_code("class Page:\n    def _repr_html_(self): return '<b>'\ndisplay(Page(), id='p').update(Page())")
        self.assertEqual(told.displays(), [("text/html", b"<b>", "p", False), ("text/html", b"<b>", "p", True)])
        told = self.run_code("class P:\n    def _repr_png_(self): return b'\\x89PNG' + bytes(500_000)\nP()")
        self.assertEqual([(d[0], len(d[1])) for d in told.displays()], [("image/png", 500_004)])

    def test_large_code_and_results_and_any_text(self):
        told = self.run_code("s = '" + "y" * 900_000 + "'\ns")
        self.assertEqual(len(told.result), 900_003)
        self.check("'é \\ud800'", "'é \\ud800'")
        self.assertEqual(self.run_code("raise ValueError('\\ud800' + 'x' * 300_000)").error["name"], "ValueError")

    def test_deep_recursion_is_an_error(self):
        told = self.run_code("def f(n): return f(n + 1)\nf(0)")
        self.assertEqual(told.error["name"], "RecursionError")
        self.check("1 + 1", "2")
        told = self.run_code("x = []\nfor _ in range(100_000): x = [x]\nrepr(x)")
        self.assertEqual(told.error["name"], "RecursionError")
        self.check("1 + 1", "2")

    def test_a_child_process_and_a_thread_are_refused(self):
        for code, name in (
            ("import subprocess; subprocess.run(['ls'])", "PermissionError"),
            ("import os; os.system('ls')", "PermissionError"),
            ("os.fork()", "OSError"),
            ("import threading; threading.Thread(target=print).start()", "RuntimeError"),
        ):
            self.assertEqual(self.run_code(code).error["name"], name, code)
        self.check("import asyncio\nawait asyncio.to_thread(lambda: 5)", "5")


class Tools(WithWorker):
    def test_calls_are_sync_awaited_and_at_once(self):
        self.check("tools.echo(value={'a': [1, None]})", "{'a': [1, None]}")
        self.check("await tools.echo(value=2)", "2")
        self.check("import asyncio\nawait asyncio.gather(*(tools.echo(value=i) for i in range(38)))", str(list(range(38))))
        self.assertEqual(self.run_code("tools.fail(message='no')").error, {"name": "ToolError", "message": "no"})
        self.check("tools.echo(value='x' * 2_000_000) == 'x' * 2_000_000", "True")

    def test_answers_out_of_order_find_their_calls(self):
        self.keeper.start("import asyncio\nawait asyncio.gather(tools.wait(value=1), tools.wait(value=2), tools.wait(value=3))")
        calls = self.host.until_called(3)
        for _, arguments, header in reversed(calls):
            self.host.answer(header, arguments["value"] * 10)
        self.assertEqual(self.host.until_idle().result, "[10, 20, 30]\n")

    def test_an_interrupt_ends_a_call_and_a_late_answer_is_dropped(self):
        for code in ("tools.wait()", "await tools.wait()"):
            self.host.calls.clear()
            self.keeper.start(code)
            self.host.until_called(1)
            self.keeper.interrupt()
            self.assertEqual(self.host.until_idle().outcome, "interrupted", code)
            self.host.answer(self.host.calls[0][2], "late")
            self.check("tools.echo(value=1)", "1")

    def test_host_calls_carry_requests_lookups_and_programs(self):
        self.host.offer("host.http", lambda method, url, headers, body: {
            "status": 201, "headers": [["content-type", "text/x"]], "body": body or "aGk="})
        self.host.offer("host.lookup", lambda name: {"addresses": ["192.0.2.7", "2001:db8::1"]})
        self.host.offer("host.run", lambda args, shell, cwd, env, input: {
            "returncode": 2, "stdout": input or "b3V0", "stderr": "ZXJy"})
        for code, shown in (
            ("import urllib.request as u; r = u.urlopen('https://127.0.0.1/x'); r.status, r.read(), r.headers['Content-Type']",
             "(201, b'hi', 'text/x')"),
            ("u.urlopen(u.Request('http://127.0.0.1/', data=b'\\xff', method='PUT')).read()", r"b'\xff'"),
            ("from pyodide.http import pyfetch\nr = await pyfetch('http://127.0.0.1:81')\nr.ok, await r.string()", "(True, 'hi')"),
            ("import socket; socket.gethostbyname('b.example')", "'192.0.2.7'"),
            ("[a[4][:2] for a in socket.getaddrinfo('b.example', 80)]", "[('192.0.2.7', 80), ('2001:db8::1', 80)]"),
            ("import subprocess; r = subprocess.run(['a', 'b'], capture_output=True); r.returncode, r.stdout, r.stderr",
             "(2, b'out', b'err')"),
            ("subprocess.run('cat', input='text', capture_output=True, text=True, shell=True).stdout", "'text'"),
        ):
            told = self.run_code(code)
            self.assertEqual((told.result, told.traceback), (shown + "\n", ""), code)
        self.assertEqual(self.run_code("subprocess.check_output(['x'])").error["name"], "CalledProcessError")
        self.assertEqual(self.run_code("subprocess.run(['x'])").printed, "out")

    def test_without_a_client_each_is_refused_by_name(self):
        for code in (
            "import urllib.request; urllib.request.urlopen('http://127.0.0.1')",
            "import socket; socket.getaddrinfo('a.example', 80)",
            "import subprocess; subprocess.run(['ls'])",
            "from pyodide.http import pyfetch; await pyfetch('http://127.0.0.1')",
            "import socket; socket.create_connection(('127.0.0.1', 80))",
            "import http.client; http.client.HTTPConnection('127.0.0.1').request('GET', '/')",
        ):
            told = self.run_code(code)
            self.assertEqual(told.error["name"], "PermissionError", code)


class Interrupts(WithWorker):
    def interrupted(self, code, ready=None):
        self.keeper.start("kept = 1\nprint('go')\n" + code)
        self.keeper.until_printed("go\n")
        if ready:
            self.keeper.pick(ready)
        began = time.monotonic()
        self.keeper.interrupt()
        told = self.keeper.until("idle")
        took = time.monotonic() - began
        self.assertEqual(told.outcome, "interrupted", code)
        self.assertLess(took, 10, code)
        return took

    def test_every_wait_and_loop_ends(self):
        for code, ready in (
            ("while True: pass", None),
            ("import time; time.sleep(60)", None),
            ("import asyncio; await asyncio.sleep(60)", None),
            ("import asyncio; asyncio.run(asyncio.sleep(60))", None),
            ("async def spin():\n    while True: await asyncio.sleep(0)\nawait spin()", None),
            ("input('x')", "stdin_wait"),
            ("import sys; sys.stdin.read()", "stdin_wait"),
            ("import asyncio; await asyncio.Event().wait()", None),
            ("sum(i for i in iter(int, 1))", None),
        ):
            self.interrupted(code, ready)
            self.assertEqual(self.run_code("kept + 1").result, "2\n")

    def test_an_interrupt_in_an_event_loop_loses_no_step(self):
        self.run_code("import asyncio\nloop = None\nasync def spin():\n    while True: await asyncio.sleep(0)\nawait asyncio.sleep(0)")
        for i in range(40):
            self.interrupted("loop = loop or asyncio.get_running_loop()\nawait spin()")
            told = self.run_code("await asyncio.sleep(0)\nasyncio.get_running_loop() is loop")
            self.assertEqual(told.result, "True\n", "the interrupt %d lost the loop" % i)
        # Here a lost step would be waited for without end.
        for _ in range(10):
            self.interrupted("asyncio.run(spin())")

    def test_an_early_a_late_and_a_foreign_interrupt(self):
        self.keeper.send(kind="interrupt", turn=1)
        self.keeper.signal()
        self.assertEqual(self.run_code("x = 1").outcome, "interrupted")
        self.assertEqual(self.run_code("2").result, "2\n")
        self.keeper.send(kind="interrupt", turn=2)
        self.keeper.signal()
        self.assertEqual(self.run_code("import time; time.sleep(0.2); 3").result, "3\n")
        self.keeper.start("print('go'); import time; time.sleep(0.3); 4")
        self.keeper.until_printed("go\n")
        self.keeper.send(kind="interrupt", turn=1)
        self.keeper.signal()
        self.assertEqual(self.keeper.until("idle").result, "4\n")

    def test_an_interrupt_between_the_parts_of_the_code(self):
        self.keeper.turn += 1
        self.keeper.send_raw(frame({"kind": "turn_start", "turn": 1, "more": True}, b"x = 5\n"))
        self.keeper.send(kind="interrupt", turn=1)
        self.keeper.signal()
        self.keeper.send_raw(frame({"kind": "turn_start", "turn": 1}, b"x"))
        self.assertEqual(self.keeper.until("idle").outcome, "interrupted")
        self.assertEqual(self.run_code("'x' in globals()").result, "False\n")

    def test_interrupts_at_many_moments(self):
        code = "n = 0\nprint('go')\nwhile True:\n    n += 1; display('x' * 200, mime='text/plain')"
        for _ in range(300):
            self.keeper.start(code)
            self.keeper.until("display")
            self.keeper.interrupt()
            self.assertEqual(self.keeper.until("idle").outcome, "interrupted")
            self.assertEqual(self.run_code("n > 0").result, "True\n")

    def test_an_interrupted_loop_leaves_no_mark(self):
        for _ in range(30):
            self.interrupted("import asyncio; await asyncio.sleep(60)")
        self.check("await asyncio.sleep(0, 5)", "5")

    def test_code_may_catch_it(self):
        self.keeper.start("import time\ntry:\n    print('go'); time.sleep(60)\nexcept KeyboardInterrupt:\n    caught = True\n'on'")
        self.keeper.until_printed("go\n")
        self.keeper.interrupt()
        self.assertEqual(self.keeper.until("idle").result, "'on'\n")

    def test_left_tasks_are_cancelled(self):
        self.run_code("import asyncio\nasync def tick():\n    while True:\n        await asyncio.sleep(0.01); print('t')\n"
                      "task = asyncio.create_task(tick()); await asyncio.sleep(0)")
        self.check("await asyncio.sleep(0.1)\ntask.cancelled()", "True")


class Protocol(WithWorker):
    def test_frames_in_pieces_and_unknown_kinds(self):
        self.keeper.send(kind="weather", turn=9)
        self.keeper.turn += 1
        for byte in frame({"kind": "turn_start", "turn": 1, "mood": "good"}, b"1+1"):
            self.keeper.send_raw(bytes([byte]))
        self.assertEqual(self.keeper.until("idle").result, "2\n")

    def test_shutdown_ends_it(self):
        self.keeper.send(kind="shutdown", grace_ms=2000)
        self.assertEqual(self.keeper.until("session_end").last["reason"], "shutdown")
        self.assertEqual(self.keeper.ended(), 0)

    def test_shutdown_while_it_waits_for_input(self):
        self.keeper.start("input()")
        self.keeper.until("stdin_wait")
        self.keeper.send(kind="shutdown", grace_ms=2000)
        self.keeper.until("session_end")

    def test_a_closed_socket_ends_a_busy_worker(self):
        self.keeper.start("print('go')\nwhile True: pass")
        self.keeper.until_printed("go\n")
        self.keeper.socket.close()
        self.keeper.process.wait(10)

    def test_the_protocol_is_not_in_the_environment(self):
        self.check("import os; [n for n in os.environ if 'WINDLASS' in n]", "[]")


class Starts(WithWorker):
    def setUp(self):
        pass

    def test_a_snapshot_is_used_and_figures_are_told(self):
        self.begin()
        ready = self.keeper.ready.last
        self.assertEqual((ready["startup"]["snapshot"], ready["startup"]["package_count"]), (True, 0))
        self.assertGreater(ready["startup"]["runtime_load_ms"], 0)
        self.assertEqual(ready["capabilities"], ["stdin", "interrupt", "display", "tools"])
        one = self.run_code("import random, uuid; random.random(), uuid.uuid4()").result
        self.begin()
        self.assertNotEqual(self.run_code("import random, uuid; random.random(), uuid.uuid4()").result, one)

    def test_a_wrong_snapshot_is_refused_and_the_start_is_plain(self):
        good = open(snapshot(), "rb").read()
        other = good.replace(b'"source":"', b'"source":"0', 1).replace(b"\n\0", b"\n", 1)
        for content, why in (
            (b"", "not a snapshot"), (good[:-100], "incomplete"), (other, "another version"),
            (good[:-1] + bytes([good[-1] ^ 1]), "damaged"),
        ):
            file = os.path.join(scratch(), "memory")
            with open(file, "wb") as out:
                out.write(content)
            self.begin("--snapshot", file, read=[file], plain=True)
            ready = self.keeper.ready.last
            self.assertFalse(ready["startup"]["snapshot"])
            self.assertIn(why, ready["worker"])
            self.check("1 + 1", "2")
            self.keeper.close()

    def test_wheels_of_a_directory_are_installed(self):
        wheels = scratch()
        with zipfile.ZipFile(os.path.join(wheels, "tiny_thing-1.0-py3-none-any.whl"), "w") as wheel:
            wheel.writestr("tiny_thing/__init__.py", "answer = 42\n")
            wheel.writestr("tiny_thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
            wheel.writestr("tiny_thing-1.0.dist-info/RECORD", "")
        self.begin("--packages", wheels, read=[wheels])
        self.assertEqual(self.keeper.ready.last["startup"]["package_count"], 1)
        self.check("import tiny_thing; tiny_thing.answer", "42")
        self.check("import importlib.metadata as m; m.version('tiny-thing')", "'1.0'")

    def test_the_heap_has_a_limit_and_the_session_lives(self):
        self.begin(environment={"WINDLASS_HEAP_MB": "128"})
        self.run_code("kept = 7")
        for code in ("x = bytearray(200 << 20)", "x = []\nwhile True: x.append(bytearray(1 << 20))"):
            self.assertEqual(self.run_code(code).error["name"], "MemoryError", code)
            self.run_code("x = None")
        self.check("kept", "7")
        self.check("len(bytearray(20 << 20))", str(20 << 20))


if __name__ == "__main__":
    unittest.main()
