"""Sessions and turns, against a real node."""

import os
import subprocess
import sys
import threading
import unittest
from pathlib import Path

from node import NodeCase, in_thread, program, python, run_python, stop_node

import windlass
from windlass import Windlass


class Sessions(NodeCase):
    def test_a_turn_gives_output_result_and_outcome(self):
        turn = self.session().run("print('hello')\n6 * 7")
        self.assertEqual((turn.ok, turn.outcome), (True, "ok"))
        self.assertEqual((turn.output, turn.text), ("hello\n42\n", "hello\n42\n"))
        self.assertEqual(turn.result, "42")
        self.assertIsNone(turn.error)
        self.assertIs(turn.raise_for_error(), turn)
        self.assertGreater(turn.usage["wall_ms"], 0)

    def test_lists_of_the_node_are_typed_objects(self):
        client = self.client()
        kinds = {worker["name"] for worker in client.workers()}
        self.assertLessEqual({"python", "shell"}, kinds)
        self.session(client).run("1")
        self.assertIsInstance(client.environments(wait=0.01), list)

    def test_a_session_may_install_packages(self):
        session = self.client().session(interpreter=python(), allow_packages=True)
        self.addCleanup(session.close)
        turn = session.run("import os, sys\nsys.executable == os.environ['VIRTUAL_ENV'] + '/bin/python'")
        self.assertEqual(turn.value, True, turn.output)
        self.assertIn("hosts", session.info()["policy"]["network"])

    def test_relative_paths_are_those_of_the_client(self):
        here = os.path.realpath(self.base)
        os.makedirs(f"{here}/work")
        before = os.getcwd()
        os.chdir(here)
        self.addCleanup(os.chdir, before)
        policy = {"writable": ["out", "~/windlass-not-there"], "hidden": [Path("keys")]}
        os.makedirs(f"{here}/out")
        session = self.client().session(
            workspace="work", interpreter=os.path.relpath(python(), here), policy=policy
        )
        self.addCleanup(session.close)
        info = session.info()
        self.assertEqual(info["workspace"], f"{here}/work")
        self.assertIn(f"{here}/out", info["policy"]["writable"])
        self.assertIn(f"{here}/keys", info["policy"]["hidden"])
        turn = session.run(f"open({here + '/out/file'!r}, 'w').write('x')")
        self.assertEqual(turn.result, "1", turn.output)

    def test_a_turn_has_an_exit_code_a_value_and_its_streams_apart(self):
        code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n{'a': [1, 2.5, None]}"
        turn = self.session().run(code, stdout_bytes_max=1000, stderr_bytes_max=1000)
        self.assertEqual((turn.exit_code, turn.value), (0, {"a": [1, 2.5, None]}))
        self.assertEqual((turn.stdout, turn.stderr), ("out\n", "err\n"))
        turn = self.session().run("import sys\nsys.exit(3)")
        self.assertEqual((turn.exit_code, turn.value, turn.stdout), (3, None, None))

    def test_a_turn_has_its_own_directory_variables_arguments_and_name(self):
        session = self.session()
        look = "import os, sys\n[os.getcwd(), os.environ.get('HERE'), sys.argv]"
        before = session.run(look).value
        turn = session.run(look, cwd="/", env={"HERE": "yes"}, args=["a"], file="/x/y.py")
        self.assertEqual(turn.value, ["/", "yes", ["/x/y.py", "a"]])
        self.assertEqual(session.run(look).value, before)
        turn = session.run("print(__file__)\n1", file="/x/y.py", program=True)
        self.assertEqual((turn.output, turn.value, turn.exit_code), ("/x/y.py\n", None, 0))

    def test_a_turn_without_a_value_has_no_result(self):
        session = self.session()
        self.assertIsNone(session.run("x = 1").result)
        self.assertIsNone(session.run("print('said, not shown')").result)
        self.assertEqual(session.run("x").result, "1")

    def test_the_result_is_found_behind_much_output(self):
        session = self.session()
        turn = session.run("for n in range(300): print('x' * 1000, flush=True)\n'the end'")
        self.assertEqual(turn.result, "'the end'")
        self.assertGreater(turn.omitted_bytes, 0)
        self.assertEqual(turn.output_bytes, 300 * 1001 + 10)
        tail = session.output(turn=turn.id, tail=10)
        self.assertEqual((tail.text, tail.total), ("'the end'\n", turn.output_bytes))

    def test_state_stays_between_turns_and_goes_with_a_reset(self):
        session = self.session()
        session.run("x = 20").raise_for_error()
        self.assertEqual(session.run("x + 1").result, "21")
        session.reset()
        self.assertEqual(session.run("x").error.name, "NameError")

    def test_an_error_of_the_code_is_a_result_and_raises_when_asked(self):
        turn = self.session().run("print('before')\n1 / 0")
        self.assertEqual((turn.ok, turn.outcome), (False, "error"))
        self.assertEqual((turn.error.name, turn.error.code), ("ZeroDivisionError", None))
        with self.assertRaises(windlass.TurnFailed) as caught:
            turn.raise_for_error()
        self.assertIs(caught.exception.result, turn)
        self.assertIn("ZeroDivisionError: division by zero", str(caught.exception))
        self.assertIn("before", str(caught.exception))

    def test_a_refusal_of_the_policy_is_in_the_result_and_in_the_exception(self):
        turn = self.session().run("open('/usr/windlass-refused', 'w')")
        self.assertEqual(turn.refusal["control"], "write")
        with self.assertRaises(windlass.TurnFailed) as caught:
            turn.raise_for_error()
        self.assertIn("`--writable /usr`", str(caught.exception))
        self.assertIsNone(self.session().run("1 / 0").refusal)

    def test_a_display_comes_with_its_bytes(self):
        code = (
            "class Picture:\n"
            "    def _repr_png_(self): return b'\\x89PNG' + bytes(300_000)\n"
            "Picture()"
        )
        turn = self.session().run(code)
        self.assertEqual([display.mime for display in turn.displays], ["image/png"])
        self.assertEqual(turn.displays[0].data, b"\x89PNG" + bytes(300_000))

    def test_a_session_has_a_deadline_for_its_turns_and_an_idle_timeout(self):
        session = self.session(deadline=0.2, idle=0.5)
        info = session.info()
        self.assertEqual((info.get("deadline_ms"), info.get("idle_s")), (200, 1))
        turn = session.run("while True: pass")
        self.assertEqual((turn.outcome, turn.error.code), ("timed_out", "deadline_passed"))
        self.assertIn("its deadline of 200 ms (the default of its session)", turn.error.message)

    def test_a_deadline_ends_the_turn(self):
        turn = self.session().run("while True: pass", deadline=0.2)
        self.assertEqual((turn.outcome, turn.error.code), ("timed_out", "deadline_passed"))

    def test_a_running_turn_is_interrupted_and_the_state_stays(self):
        session = self.session()
        session.run("x = 7")
        turn = session.submit("print('on', flush=True)\nwhile True: pass")
        for event in turn.events():
            if event.kind == "output":
                break
        session.interrupt()
        self.assertEqual(turn.wait(30).outcome, "interrupted")
        session.interrupt()
        self.assertEqual(session.run("x").result, "7")

    def test_waiting_for_a_turn_has_a_limit_and_the_turn_goes_on(self):
        session = self.session()
        turn = session.submit("import time\nwhile True: time.sleep(0.01)")
        with self.assertRaises(TimeoutError):
            turn.wait(0.05)
        self.assertNotEqual(turn.look()["state"], "ended")
        turn.interrupt()
        self.assertEqual(turn.wait(30).outcome, "interrupted")
        self.assertEqual(session.turn(turn.id).wait().outcome, "interrupted")

    def test_the_same_turn_sent_twice_runs_once(self):
        session = self.session()
        wish = {"id": "chosen-1", "code": "n = globals().get('n', 0) + 1\nn", "wait_ms": 10_000}
        for _ in range(2):
            from windlass import _calls

            turn = session._transport.perform(_calls.submit(session.id, wish))
            self.assertEqual(turn["output"]["text"], "1\n")
        self.assertEqual(session.run("n").result, "1")

    def test_a_session_ends_with_its_block_and_an_attached_one_does_not(self):
        client = self.client()
        with client.session(interpreter=python()) as session:
            session.run("x = 1")
            with client.attach(session.id) as again:
                self.assertEqual(again.run("x").result, "1")
            self.assertIn(session.id, [one["id"] for one in client.sessions()])
        self.assertNotIn(session.id, [one["id"] for one in client.sessions()])
        self.assertIn(session.id, [one["id"] for one in client.sessions(ended_too=True)])
        with self.assertRaises(windlass.SessionEnded):
            session.run("x")

    def test_a_session_is_made_as_it_is_asked_for(self):
        workspace = f"{self.base}/here"
        os.mkdir(workspace)
        session = self.session(id="named-1", workspace=workspace, env={"COLOUR": "red"})
        self.assertEqual((session.id, session.workspace), ("named-1", workspace))
        turn = session.run("import os\nos.environ['COLOUR'], os.getcwd()")
        self.assertEqual(turn.result, repr(("red", workspace)))
        with self.assertRaises(windlass.SessionExists):
            self.session(id="named-1")
        reading = self.session(policy="read-only")
        self.assertEqual(reading.info()["policy"]["preset"], "read-only")
        self.assertEqual(reading.run("open('f', 'w')").error.name, "OSError")

    def test_two_clients_share_a_session_and_its_order(self):
        first = self.session()
        second = self.client().attach(first.id)
        waits = [in_thread(lambda s=s: s.run("n = globals().get('n', 0) + 1\nn")) for s in (first, second)]
        self.assertEqual(sorted(wait().result for wait in waits), ["1", "2"])

    def test_many_threads_use_one_client(self):
        client = self.client()
        sessions = [self.session(client) for _ in range(4)]
        waits = [
            in_thread(lambda s=s, n=n: [s.run(f"{n} * {k}").result for k in range(10)])
            for n, s in enumerate(sessions)
        ]
        for n, wait in enumerate(waits):
            self.assertEqual(wait(), [str(n * k) for k in range(10)])

    def test_errors_carry_code_message_and_remedy(self):
        with self.assertRaises(windlass.SessionNotFound) as caught:
            self.client().attach("nobody")
        error = caught.exception
        self.assertEqual(error.code, "session_not_found")
        self.assertIn("nobody", error.message)
        self.assertTrue(error.remedy)
        self.assertFalse(error.retryable)
        self.assertEqual(str(error), f"{error.message}\n  remedy: {error.remedy}")
        import pickle

        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(again), str(again)), (type(error), str(error)))
        with self.assertRaises(windlass.BadRequest):
            self.client().session(id="not an id")


class Input(NodeCase):
    def test_input_is_answered_with_the_prompt_at_hand(self):
        asked = []

        def answer(prompt, secret):
            asked.append((prompt, secret))
            return {"name? ": "Ada", "key? ": "x1"}[prompt]

        code = "import getpass\ninput('name? ') + getpass.getpass('key? ')"
        turn = self.session().run(code, on_input=answer)
        self.assertEqual(turn.result, "'Adax1'")
        self.assertEqual(asked, [("name? ", False), ("key? ", True)])

    def test_without_an_answer_the_code_finds_the_end_of_its_input(self):
        self.assertEqual(self.session().run("input()").error.name, "EOFError")

    def test_a_submitted_turn_says_that_it_waits_and_is_answered(self):
        turn = self.session().submit("int(input('number? ')) * 2")
        with self.assertRaises(windlass.InputNeeded) as caught:
            turn.wait(30)
        self.assertEqual((caught.exception.prompt, caught.exception.secret), ("number? ", False))
        turn.input("21")
        self.assertEqual(turn.wait(30).result, "42")

    def test_an_answer_that_fails_interrupts_the_turn(self):
        session = self.session()

        def answer(prompt, secret):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            session.run("input()", on_input=answer)
        self.assertEqual(session.run("1").result, "1")


class Finding(NodeCase):
    def tearDown(self):
        stop_node()

    def test_twenty_first_clients_start_one_node(self):
        code = "from windlass import Windlass\nwith Windlass() as w: print(w.status()['pid'])"
        waits = [in_thread(lambda: run_python(code)) for _ in range(20)]
        done = [wait() for wait in waits]
        self.assertEqual({one.returncode for one in done}, {0}, [one.stderr for one in done])
        self.assertEqual(len({one.stdout for one in done}), 1)

    def test_threads_of_one_process_start_one_node(self):
        waits = [in_thread(lambda: self.client().status()["pid"]) for _ in range(8)]
        self.assertEqual(len({wait() for wait in waits}), 1)

    def test_no_node_is_started_where_that_is_not_wanted(self):
        with self.assertRaises(windlass.NodeUnreachable) as caught:
            Windlass(start=False)
        self.assertEqual(caught.exception.remedy, "start a node with: windlass up")

    def test_a_program_that_is_not_there_is_named(self):
        before = os.environ["WINDLASS_BIN"]
        os.environ["WINDLASS_BIN"] = f"{self.base}/nothing"
        try:
            with self.assertRaises(windlass.StartFailed) as caught:
                Windlass()
        finally:
            os.environ["WINDLASS_BIN"] = before
        self.assertIn(f"{self.base}/nothing", caught.exception.message)

    def test_a_directory_that_others_can_write_is_refused_with_the_remedy(self):
        before = os.environ["WINDLASS_RUNTIME_DIR"]
        os.mkdir(f"{self.base}/open")
        os.chmod(f"{self.base}/open", 0o770)
        os.environ["WINDLASS_RUNTIME_DIR"] = f"{self.base}/open"
        try:
            with self.assertRaises(windlass.StartFailed) as caught:
                Windlass()
        finally:
            os.environ["WINDLASS_RUNTIME_DIR"] = before
        self.assertEqual(caught.exception.remedy, f"run: chmod 700 {self.base}/open")

    def test_the_tcp_door_opens_with_its_token_and_with_no_other(self):
        said = subprocess.run(
            [program(), "up", "--listen", "127.0.0.1:0"], capture_output=True, text=True, check=True
        )
        with Windlass(start=False) as local:
            listen = local.status()["listen"]
        url = f"http://{listen}"
        token = Path(f"{self.base}/s/token").read_text().strip()
        self.assertTrue(listen, said.stdout)
        with Windlass(url=url, token=token) as remote:
            with remote.session(interpreter=python()) as session:
                self.assertEqual(session.run("6 * 7").result, "42")
                kinds = [event.kind for event in session.stream("print('over TCP')")]
                self.assertEqual(kinds, ["turn_accepted", "output", "turn_ended"])
        with Windlass(url=url) as by_file:
            self.assertEqual(by_file.status()["listen"], listen)
        with self.assertRaises(windlass.Unauthorized):
            Windlass(url=url, token="0" * 64)
        with self.assertRaises(windlass.Unauthorized) as caught:
            Windlass(url=url, token="secret")
        self.assertNotIn("secret", str(caught.exception))
        with self.assertRaises(windlass.BadRequest):
            Windlass(url="ftp://127.0.0.1:1", token="0" * 64)


class Interrupting(NodeCase):
    def test_ctrl_c_in_the_client_interrupts_the_turn(self):
        session = self.session()
        source = str(Path(windlass.__file__).parent.parent)
        # A test that runs in the background ignores SIGINT, and so do its children.
        code = (
            "import signal\nfrom windlass import Windlass\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            f"Windlass().attach({session.id!r}).run('n = 1; print(n, flush=True)\\nwhile True: pass')"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": source},
            stderr=subprocess.PIPE,
        )
        with session.events() as events:
            for event in events:
                if event.kind == "output":
                    break
            child.send_signal(2)
            _, said = child.communicate(timeout=60)
            outcome = next(event.outcome for event in events if event.kind == "turn_ended")
        self.assertIn(b"KeyboardInterrupt", said)
        self.assertEqual(outcome, "interrupted")
        self.assertEqual(session.run("n").result, "1")


if __name__ == "__main__":
    threading.excepthook = lambda args: None
    unittest.main()
