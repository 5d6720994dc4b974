"""Files by host calls: a client serves the directory that the code works in."""

import base64
import json
import os
import sys
import time
import unittest

from pyodide_keeper import HERE, WithWorker
from host import LATER, Fail
from keeper import frame

sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "sdk", "python", "src"))

from windlass import MemoryFiles  # noqa: E402
from windlass._providers import HostProviders  # noqa: E402
from windlass._tool import encode_error  # noqa: E402


class WithFiles(WithWorker):
    # How long a call waits for its answer. This process may be slow to answer.
    deadline_ms = 20_000

    def setUp(self):
        self.begin(files="host", environment={"WINDLASS_FILES_DEADLINE_MS": str(self.deadline_ms)})
        self.files = MemoryFiles({"a.txt": b"one\ntwo\n", "pack/mod.py": b"value = 42\n"})
        for one in HostProviders(files=self.files).tools():
            self.host.offer(one.name, self.serve(one))

    def serve(self, one):
        def call(**arguments):
            try:
                return one.call(json.dumps(arguments).encode())
            except Exception as error:
                raise Fail(**json.loads(encode_error(error)))

        return call

    def names(self):
        return [name for name, _, _ in self.host.calls]


class Operations(WithFiles):
    def test_code_works_with_files_as_ever(self):
        for code, shown in (
            ("import os; os.getcwd()", "'/workspace'"),
            ("open('a.txt').read()", r"'one\ntwo\n'"),
            ("open('a.txt').readlines()[1]", r"'two\n'"),
            ("sorted(os.listdir())", "['a.txt', 'pack']"),
            ("os.stat('a.txt').st_size, os.path.isdir('pack'), os.path.exists('no')", "(8, True, False)"),
            ("open('b', 'wb').write(bytes(range(256)))", "256"),
            ("open('b', 'rb').read() == bytes(range(256))", "True"),
            ("f = open('b', 'ab'); f.write(b'xyz'); f.close(); os.path.getsize('b')", "259"),
            ("f = open('b', 'r+b'); f.seek(2); f.write(b'!'); f.truncate(4); f.close(); open('b', 'rb').read()",
             r"b'\x00\x01!\x03'"),
            ("os.makedirs('x/y/z'); open('x/y/z/f', 'w').write('1'); os.rename('x/y', 'x/q'); "
             "[(d, s, f) for d, s, f in os.walk('x')]",
             "[('x', ['q'], []), ('x/q', ['z'], []), ('x/q/z', [], ['f'])]"),
            ("open('x/q/z/f').read()", "'1'"),
            ("import shutil; shutil.rmtree('x'); os.path.exists('x')", "False"),
            ("os.remove('b'); os.path.exists('b')", "False"),
            ("import pack.mod; pack.mod.value", "42"),
            ("open('new.py', 'w').write('v = 7'); import new; new.v", "7"),
            ("open('d', 'w').close(); os.path.getsize('d')", "0"),
            ("import pathlib; pathlib.Path('p').write_text('é'); pathlib.Path('p').read_text()", "'é'"),
            ("import sqlite3, tempfile; tempfile.mkstemp()[1].startswith('/tmp')", "True"),
        ):
            told = self.run_code(code)
            self.assertEqual((told.result, told.traceback), (shown + "\n", ""), code)

    def test_errors_are_those_of_files(self):
        for code, name in (
            ("open('no')", "FileNotFoundError"),
            ("open('no/no', 'w')", "FileNotFoundError"),
            ("import os; os.mkdir('pack')", "FileExistsError"),
            ("open('a.txt', 'x')", "FileExistsError"),
            ("os.listdir('a.txt')", "NotADirectoryError"),
            ("open('pack')", "IsADirectoryError"),
            ("os.symlink('a', 'b')", "PermissionError"),
        ):
            self.assertEqual(self.run_code(code).error["name"], name, code)
        told = self.run_code("os.rmdir('pack')")
        self.assertIn("not empty", told.error["message"])

    def test_a_large_file_goes_in_calls_of_at_most_4_mib(self):
        told = self.run_code(
            "data = bytes(range(256)) * 40_000\n"
            "with open('big', 'wb', buffering=0) as f:\n    at = 0\n"
            "    while at < len(data): at += f.write(data[at:])\n"
            "open('big', 'rb').read() == data"
        )
        self.assertEqual(told.result, "True\n", told.traceback)
        sizes = [len(base64.b64decode(a["data"])) for n, a, _ in self.host.calls if n == "files.write"]
        self.assertEqual((sum(sizes), max(sizes)), (10_240_000, 4 * 1024 * 1024))
        self.assertLessEqual(
            max(a["length"] for n, a, _ in self.host.calls if n == "files.read"), 4 * 1024 * 1024
        )

    def test_a_stat_is_one_call(self):
        self.run_code("import os")
        self.host.calls.clear()
        self.run_code("os.stat('a.txt')")
        self.assertEqual(self.names(), ["files.stat"])
        _, arguments, header = self.host.calls[0]
        self.assertEqual((arguments, header["deadline_ms"]), ({"path": "a.txt"}, self.deadline_ms))

    def test_a_list_is_one_call_whatever_its_length(self):
        self.run_code("import os\nfor i in range(20): open('n%d' % i, 'w').close()")
        self.host.calls.clear()
        self.check("len([e for e in os.scandir() if e.is_file()])", "21")
        self.assertEqual(self.names(), ["files.list"])

    def test_names_without_kinds_are_looked_up(self):
        self.host.offer("files.list", lambda path: {"names": ["a.txt", "pack"]})
        self.check("import os; [(e.name, e.is_dir()) for e in os.scandir()]", "[('a.txt', False), ('pack', True)]")

    def test_standard_modules_need_no_call(self):
        self.run_code("import csv, decimal, statistics")
        self.assertEqual(self.host.calls, [])


class Unanswered(WithFiles):
    deadline_ms = 1000

    def test_an_unanswered_call_is_a_timeout_with_its_time_and_the_session_lives(self):
        self.host.offer("files.read", lambda **_: LATER)
        began = time.monotonic()
        told = self.run_code("x = 1\nopen('a.txt').read()")
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(told.error["name"], "TimeoutError")
        self.assertIn("files.read of /workspace/a.txt was not answered within 1 s", told.error["message"])
        self.assertTrue(self.host.cancelled)
        self.assertEqual(self.run_code("x + 1").result, "2\n")

    def test_a_late_answer_changes_nothing(self):
        self.host.offer("files.read", lambda **_: LATER)
        self.run_code("open('a.txt').read()")
        late = next(header for name, _, header in self.host.calls if name == "files.read")
        self.host.answer(late, {"data": "eHh4"})
        self.host.offer("files.read", lambda path, offset, length: {"data": "b2s=" if not offset else ""})
        self.assertEqual(self.run_code("open('a.txt').read(2)").result, "'ok'\n")


class Failures(WithFiles):
    def test_answers_for_other_calls_are_not_taken(self):
        def read(**arguments):
            call = self.host.calls[-1][2]
            for wrong in (call["call"] + 1, call["call"] - 1, 7):
                self.host.answer({**call, "call": wrong}, {"data": "eHh4eA=="})
            return {"data": base64.b64encode(b"right"[arguments["offset"]:]).decode()}

        self.host.offer("files.read", read)
        self.assertEqual(self.run_code("open('a.txt').read()").result, "'right'\n")

    def test_without_a_client_it_is_refused_by_name(self):
        self.host.tools.clear()
        told = self.run_code("open('a.txt')")
        self.assertEqual(told.error["name"], "PermissionError")
        self.assertIn("no client serves files", told.error["message"])
        self.assertEqual(self.run_code("1 + 1").result, "2\n")

    def test_a_failing_provider_is_named(self):
        def fail(**_):
            raise Fail("the disk is on fire", type="ValueError")

        self.host.offer("files.stat", fail)
        told = self.run_code("import os; os.stat('a.txt')")
        self.assertEqual(told.error["name"], "OSError")
        self.assertIn("files.stat of /workspace/a.txt failed: the disk is on fire", told.error["message"])

    def test_python_classes_and_codes_become_error_numbers(self):
        for error, name in (
            (dict(type="FileNotFoundError"), "FileNotFoundError"),
            (dict(type="PermissionError"), "PermissionError"),
            (dict(type="Error", code="EEXIST"), "FileExistsError"),
            (dict(type="ENOTDIR"), "NotADirectoryError"),
            (dict(code="tool_host_gone"), "PermissionError"),
        ):
            self.host.offer("files.stat", lambda error=error, **_: self._fail("it", **error))
            self.assertEqual(self.run_code("import os; os.stat('a.txt')").error["name"], name, error)

    def test_answers_of_another_form_are_errors(self):
        for answer in (None, [], {}, {"kind": "socket"}, {"kind": "file"}, {"kind": "file", "size": -1}, "x"):
            self.host.offer("files.stat", lambda answer=answer, **_: answer)
            told = self.run_code("import os; os.stat('a.txt')")
            self.assertIn("unknown form", told.error["message"], answer)
        for answer in (None, {"names": ["../x"]}, {"names": ["a/b"]}, {"names": [3]}, {"names": "abc"},
                       {"entries": [{"name": "a"}]}, {"entries": [None]}, {"entries": [{"kind": "file", "size": 1}]}):
            self.host.offer("files.list", lambda answer=answer, **_: answer)
            self.assertIn("unknown form", self.run_code("os.listdir()").error["message"], answer)

    def test_more_bytes_than_asked_for_are_refused(self):
        self.host.offer("files.read", lambda **_: {"data": base64.b64encode(b"x" * 10_000_00).decode()})
        told = self.run_code("import os; os.read(os.open('/workspace/pack/mod.py', os.O_RDONLY), 10)")
        self.assertIn("unknown form", told.error["message"])

    def test_an_interrupt_ends_the_wait_for_a_file(self):
        self.host.offer("files.read", lambda **_: LATER)
        for code in ("open('a.txt').read()", "import os; os.stat('a.txt')"):
            self.host.offer("files.stat", self.host.tools["files.stat"] if "open" in code else lambda **_: LATER)
            self.keeper.start("y = 5\n" + code)
            before = len(self.host.calls)
            wanted = "files.read" if "open" in code else "files.stat"
            while wanted not in [name for name, _, _ in self.host.calls[before:]]:
                self.host.take(self.keeper.pick("tool_call"))
            began = time.monotonic()
            self.keeper.interrupt()
            told = self.host.until_idle()
            self.assertEqual(told.outcome, "interrupted", code)
            # It is the interrupt that ends the wait, and not the deadline.
            self.assertLess(time.monotonic() - began, self.deadline_ms / 2000)
        self.assertEqual(self.run_code("y").result, "5\n")

    def test_an_answer_in_pieces_is_joined(self):
        def stat(path):
            call = self.host.calls[-1][2]
            body = json.dumps({"kind": "file", "size": 5, "mtime_ms": 1000}).encode()
            header = {"kind": "tool_result", "turn": call["turn"], "call": call["call"], "ok": True}
            for at in range(len(body)):
                more = {"more": True} if at + 1 < len(body) else {}
                self.keeper.send_raw(frame({**header, **more}, body[at : at + 1]))
            return LATER

        self.host.offer("files.stat", stat)
        self.assertEqual(self.run_code("import os; os.stat('a.txt').st_size").result, "5\n")


class Workspace(WithWorker):
    def test_without_a_provider_the_code_works_in_the_sessions_directory(self):
        with open(os.path.join(self.keeper.directory, "in.txt"), "w") as file:
            file.write("from outside")
        self.check("open('in.txt').read()", "'from outside'")
        self.run_code("open('out.txt', 'w').write('from inside')")
        with open(os.path.join(self.keeper.directory, "out.txt")) as file:
            self.assertEqual(file.read(), "from inside")
        os.symlink("/etc/passwd", os.path.join(self.keeper.directory, "link"))
        self.assertIn(self.run_code("open('link')").error["name"], ("FileNotFoundError", "PermissionError"))


if __name__ == "__main__":
    unittest.main()
