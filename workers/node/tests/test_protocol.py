"""The worker as a process: frames in pieces, unknown messages, exit, children, the socket, the startup file."""

import contextlib
import os
import signal
import tempfile
import time
import unittest

from node_keeper import Keeper, frame
from worker_case import WorkerCase


class Frames(WorkerCase):
    def test_a_frame_byte_by_byte_and_two_in_one_write(self):
        for byte in frame({"kind": "turn_start", "turn": 41}, b"1 + 1"):
            self.keeper.send_raw(bytes([byte]))
        told = self.keeper.until("idle")
        self.assertEqual((told.last["turn"], told.result), (41, "2\n"))
        self.keeper.send_raw(frame({"kind": "news"}) + frame({"kind": "turn_start", "turn": 42, "mood": 1}, b"2"))
        self.assertEqual(self.keeper.until("idle").result, "2\n")

    def test_an_unknown_kind_and_an_interrupt_between_chunks(self):
        self.keeper.send_raw(frame({"kind": "turn_start", "turn": 1, "more": True}, b"1 +"))
        self.keeper.send_raw(frame({"kind": "news", "turn": 1}))
        self.keeper.send_raw(frame({"kind": "turn_start", "turn": 1}, b" 1"))
        self.assertEqual(self.keeper.until("idle").result, "2\n")
        self.keeper.send_raw(frame({"kind": "turn_start", "turn": 2, "more": True}, b"console.log('ran');"))
        self.keeper.interrupt(turn=2)
        self.keeper.send_raw(frame({"kind": "turn_start", "turn": 2}, b"for (;;);"))
        told = self.keeper.until("idle")
        self.assertEqual((told.outcome, told.printed), ("interrupted", ""))
        self.keeper.turn = 2
        self.assertEqual(self.result("3"), "3\n")

    def test_an_interrupt_behind_large_unread_frames(self):
        self.start("console.log('on'); for (;;);")
        self.keeper.send(b"i" * 400_000, kind="turn_input", turn=1)
        self.keeper.interrupt()
        self.assertEqual(self.keeper.until("idle").outcome, "interrupted")

    def test_a_malformed_frame_ends_the_process(self):
        self.keeper.send_raw(b"\xff\xff\xff\xff\x00\x00\x00\x00")
        self.assertEqual(self.keeper.ended(), 76)


class Life(WorkerCase):
    def test_exit_ends_the_turn_and_not_the_worker(self):
        self.result("globalThis.kept = 1")
        for code, outcome, error in (
            ("process.exit(0)", "ok", None),
            ("process.exit()", "ok", None),
            ("process.exit(3); console.log('not reached')", "error", {"name": "ProcessExit", "message": "3"}),
            ("try { process.exit(4) } catch {} await new Promise(() => {})", "error", {"name": "ProcessExit", "message": "4"}),
            ("setTimeout(() => process.exit(5), 1); await new Promise(() => {})", "error", {"name": "ProcessExit", "message": "5"}),
            ("(async () => { process.exit(6) })(); await new Promise(() => {})", "error", {"name": "ProcessExit", "message": "6"}),
            ("process.exitCode = 7; process.exit()", "error", {"name": "ProcessExit", "message": "7"}),
            ("process.reallyExit(8)", "error", {"name": "ProcessExit", "message": "8"}),
        ):
            with self.subTest(code=code):
                told = self.run_code(code)
                self.assertEqual((told.outcome, told.error, told.printed, told.errors), (outcome, error, "", ""))
                self.assertEqual(self.result("kept"), "1\n")
        # The turn is over when the timer ends, also on a slow machine.
        self.result("setTimeout(() => { console.log('leaving'); process.exit(9) }, 500); 1")
        self.keeper.until_printed("leaving\n")
        self.assertEqual(self.result("await new Promise(r => setTimeout(r, 20, kept))"), "1\n")

    def test_shutdown_at_any_time(self):
        for code in (None, "for (;;);", "await new Promise(() => {})", "prompt()", "tools.sync.x({})", "child_process.execSync('sleep 100')",
                     "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)"):
            with self.subTest(code=code), Keeper() as keeper:
                if code:
                    keeper.start("console.log('on');" + code)
                    keeper.until_printed("on\n")
                keeper.send(kind="shutdown", grace_ms=2000)
                began = time.monotonic()
                status = keeper.process.wait(10)
                self.assertLess(time.monotonic() - began, 3)
                if code is None:
                    self.assertEqual(status, 0)
                    self.assertEqual(keeper.until("session_end").errors, "")
                if "exec" in str(code):
                    # The child may have ended with the worker.
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(keeper.process.pid, signal.SIGKILL)

    def test_a_closed_socket_ends_the_process(self):
        for code in (None, "for (;;);", "await new Promise(() => {})", "prompt()"):
            with self.subTest(code=code), Keeper() as keeper:
                if code:
                    keeper.start("console.log('on');" + code)
                    keeper.until_printed("on\n")
                keeper.socket.close()
                keeper.process.wait(10)

    def test_exit_handlers_run_at_the_shutdown(self):
        self.result("process.on('exit', () => console.log('bye')); 1")
        self.keeper.send(kind="shutdown", grace_ms=2000)
        self.assertEqual(self.keeper.ended(), 0)
        self.assertEqual([e["body"] for e in self.keeper.said if e.get("fd") == 1], [b"bye\n"])

    def test_the_environment_does_not_name_the_socket(self):
        self.assertEqual(self.result("Object.keys(process.env).filter(n => n.startsWith('WINDLASS')).length"), "0\n")
        self.assertEqual(self.result("child_process.execSync('env').toString().includes('WINDLASS')"), "false\n")

    def test_ten_thousand_turns_keep_the_memory(self):
        self.result("globalThis.gc = 1")
        for _ in range(1000):
            self.run_code("({a: 'x'.repeat(100)})")
        before = self.memory()
        for _ in range(3000):
            self.run_code("({a: 'x'.repeat(100)})")
        self.assertLess(self.memory() - before, 40_000)

    def memory(self):
        with open("/proc/%d/status" % self.keeper.process.pid) as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


CHILDREN = (
    "child_process.execSync(%s).toString()",
    "child_process.execFileSync('sh', ['-c', %s]).toString()",
    "child_process.spawnSync(%s, {shell: true}).stdout.toString()",
    "(await util.promisify(child_process.exec)(%s)).stdout",
    "await new Promise(r => { let s = ''; child_process.spawn('sh', ['-c', %s]).stdout.on('data', d => s += d).on('end', () => r(s)) })",
)


class Children(WorkerCase):
    def test_children_cannot_reach_the_socket(self):
        inode = os.readlink("/proc/%d/fd/%d" % (self.keeper.process.pid, self.socket_fd()))
        for code in CHILDREN:
            told = self.run_code(code % "'ls -l /proc/self/fd/'")
            self.assertIn("/proc/", told.result, code + told.traceback)
            self.assertNotIn(inode, told.result, code)

    def test_forked_programs_and_messages(self):
        self.write("child.js", "process.on('message', m => { process.send(m + 1); process.disconnect() })")
        self.assertEqual(self.result("const c = child_process.fork('./child.js'); c.send(1); await new Promise(r => c.on('message', r))"), "2\n")

    def socket_fd(self):
        """The descriptor that is the other end of our socket: the only socket that the worker inherited."""
        fds = "/proc/%d/fd" % self.keeper.process.pid
        own = self.fd if self.fd is not None else None
        if own is not None:
            return own
        sockets = [int(fd) for fd in os.listdir(fds) if os.readlink(os.path.join(fds, fd)).startswith("socket:")]
        return min(sockets)


class ChildrenOfAHighSocket(Children):
    fd = 300

    def test_the_standard_descriptors_are_as_asked(self):
        told = self.run_code("child_process.execSync('echo out; echo err >&2'); child_process.spawnSync('sh', ['-c', 'exit 3']).status")
        self.assertEqual((told.result, told.errors), ("3\n", "err\n"))


class Startup(unittest.TestCase):
    def run_with(self, text):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "startup.js")
            with open(path, "w") as file:
                file.write(text)
            with Keeper(cwd=directory, environment={"WINDLASS_STARTUP": path}) as keeper:
                self.assertEqual(len(keeper.ready.events), 1)
                told = keeper.run("typeof given")
                return told.result, told.printed, told.errors

    def test_a_startup_file_runs_and_its_output_waits_for_the_first_turn(self):
        self.assertEqual(self.run_with("const given = await 1; console.log('hello')"), ("'number'\n", "hello\n", ""))

    def test_a_failing_startup_file_breaks_nothing(self):
        for text in ("throw new Error('no')", "let a b", "process.exit(1)"):
            result, _, errors = self.run_with(text)
            self.assertEqual(result, "'undefined'\n")
            self.assertEqual("startup file" in errors, "exit" not in text, errors)


if __name__ == "__main__":
    unittest.main()
