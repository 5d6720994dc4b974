"""The worker's side of the protocol: its first message, its last, and unknown messages."""

import unittest

from keeper import Keeper, frame
from test_cells import WithKeeper


class Messages(WithKeeper):
    def test_ready_is_the_first_word(self):
        (ready,) = self.keeper.ready.events
        self.assertEqual(ready["protocol"], 1)
        self.assertRegex(ready["worker"], r"^python 3\.\d+\.\d+$")
        self.assertIn("stdin", ready["capabilities"])

    def test_unknown_kinds_and_fields_are_ignored(self):
        self.keeper.send(b"body", kind="what_is_this", turn=3, deep={"a": [1, None, True, 2.5, "é"]})
        self.keeper.send(b"late", kind="turn_input", turn=9)
        self.keeper.send(kind="tool_result", turn=1, call=1, ok=True)
        self.assertEqual(self.run_code("1 + 1").result, "2\n")
        self.keeper.turn += 1
        self.keeper.send(b"5", kind="turn_start", turn=self.keeper.turn, colour="red")
        self.assertEqual(self.keeper.until("idle").result, "5\n")

    def test_two_messages_in_one_write_are_both_taken(self):
        self.keeper.send_raw(
            frame({"kind": "turn_start", "turn": 1}, b"input()")
            + frame({"kind": "turn_input", "turn": 1}, b"there\n")
            + frame({"kind": "turn_start", "turn": 2}, b"'second'")
        )
        self.assertEqual(self.keeper.until("idle", turn=1).result, "'there'\n")
        self.assertEqual(self.keeper.until("idle", turn=2).result, "'second'\n")

    def test_a_message_in_single_bytes_is_taken(self):
        for byte in frame({"kind": "turn_start", "turn": 1}, b"6 * 7"):
            self.keeper.send_raw(bytes([byte]))
        self.assertEqual(self.keeper.until("idle").result, "42\n")

    def test_large_messages_pass_again_and_again(self):
        for _ in range(12):
            told = self.run_code("x = %r\nlen(x)" % ("x" * 950_000))
            self.assertEqual(told.result, "950000\n")

    def test_the_value_and_idle_come_in_one_write(self):
        self.keeper.start("1 + 1")
        self.keeper.socket.setblocking(True)
        self.keeper.socket.settimeout(10)
        data = self.keeper.socket.recv(65536)
        self.assertIn(b'"result"', data)
        self.assertIn(b'"idle"', data)


class Endings(WithKeeper):
    def test_shutdown_runs_exit_handlers_and_ends_with_0(self):
        self.run_code("import atexit\n_ = atexit.register(print, 'bye')")
        self.keeper.send(kind="shutdown", grace_ms=1000)
        self.assertEqual(self.keeper.ended(), 0)
        (end,) = [event for event in self.keeper.said if event.get("kind")]
        self.assertEqual((end["kind"], end["reason"]), ("session_end", "shutdown"))
        self.assertIn(b"bye\n", [event["body"] for event in self.keeper.said])

    def test_shutdown_ends_a_wait_for_input(self):
        self.keeper.start("input()")
        self.keeper.until("stdin_wait")
        self.keeper.send(kind="shutdown", grace_ms=1000)
        self.assertEqual(self.keeper.until("idle").outcome, "interrupted")
        self.assertEqual(self.keeper.ended(), 0)

    def test_the_end_of_the_stream_ends_the_worker(self):
        self.keeper.socket.close()
        self.assertEqual(self.keeper.process.wait(10), 0)

    def test_the_end_of_the_stream_ends_a_wait_for_input(self):
        self.keeper.start("try: input()\nexcept BaseException: input()")
        self.keeper.until("stdin_wait")
        self.keeper.socket.close()
        self.assertEqual(self.keeper.process.wait(10), 0)


class Surroundings(WithKeeper):
    def test_the_process_looks_like_a_plain_interpreter(self):
        told = self.run_code(
            "import sys, os, gc, faulthandler\n"
            "(sys.argv, sys.stdin.isatty(), gc.isenabled(), faulthandler.is_enabled(), "
            "'WINDLASS_FD' in os.environ, [p for p in sys.path if 'workers' in p])"
        )
        self.assertEqual(told.result, "([''], False, True, False, False, [])\n")

    def test_help_uses_no_pager(self):
        told = self.run_code("help(len)")
        self.assertIn("Return the number of items", told.printed)
        self.assertEqual(self.run_code("import os\nos.environ['PAGER']").result, "'cat'\n")

    def test_warnings_name_the_cell(self):
        told = self.run_code("import warnings\nwarnings.warn('careful')")
        self.assertIn("<cell 1>:2: UserWarning: careful", told.errors)

    def test_little_is_imported_before_the_first_turn(self):
        told = self.run_code("import sys\nprint(*sys.modules)")
        loaded = set(told.printed.split())
        for name in ("json", "re", "asyncio", "ctypes", "inspect", "traceback", "threading", "socket",
                     "signal", "tokenize", "getpass", "pydoc", "enum", "typing", "ast"):
            self.assertNotIn(name, loaded)

    def test_compiled_files_are_cached(self):
        import glob
        import keeper

        self.assertTrue(glob.glob(keeper.CACHE_DIRECTORY + keeper.PACKAGE_DIRECTORY + "/windlass_worker/main.*.pyc"))


if __name__ == "__main__":
    unittest.main()
