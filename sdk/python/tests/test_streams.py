"""Events as they happen, over restarts of the node."""

import unittest

from node import NodeCase, in_thread, kill_node, python

import windlass
from windlass import Windlass, events


class Streams(NodeCase):
    def test_a_turns_events_come_typed_and_in_order(self):
        code = "print('out')\nimport sys\nprint('err', file=sys.stderr)\ninput('go? ')"
        session = self.session()
        found = list(session.stream(code, on_input=lambda prompt, secret: "yes"))
        kinds = [type(event) for event in found]
        self.assertEqual(kinds[0], events.TurnAccepted)
        self.assertEqual(kinds[-1], events.TurnEnded)
        self.assertEqual(found[0].code, code)
        self.assertTrue(found[-1].ok)
        by_stream = {}
        for event in found:
            if isinstance(event, events.Output):
                by_stream[event.stream] = by_stream.get(event.stream, "") + event.text
        self.assertEqual(by_stream, {"stdout": "out\n", "stderr": "err\n", "result": "'yes'\n"})
        waits = [event for event in found if isinstance(event, events.StdinWait)]
        self.assertEqual([(wait.prompt, wait.secret) for wait in waits], [("go? ", False)])
        seqs = [event.seq for event in found]
        self.assertEqual(seqs, sorted(set(seqs)))

    def test_a_stream_shows_its_own_turn_only(self):
        session = self.session()
        session.run("print('before')")
        waiting = session.submit("print('first')")
        texts = [e.text for e in session.stream("print('second')") if e.kind == "output"]
        self.assertEqual(texts, ["second\n"])
        texts = [e.text for e in waiting.events() if e.kind == "output"]
        self.assertEqual(texts, ["first\n"])

    def test_leaving_a_stream_early_interrupts_its_turn(self):
        session = self.session()
        for event in session.stream("print('on', flush=True)\nwhile True: pass"):
            if event.kind == "output":
                break
        with session.events() as found:
            ended = next(event for event in found if event.kind == "turn_ended")
        self.assertEqual(ended.outcome, "interrupted")

    def test_a_character_that_is_cut_comes_out_whole(self):
        code = (
            "import sys\n"
            "for byte in 'naïve €'.encode():\n"
            "    sys.stdout.buffer.write(bytes([byte])); sys.stdout.buffer.flush()\n"
        )
        texts = [e.text for e in self.session().stream(code) if e.kind == "output"]
        self.assertEqual("".join(texts), "naïve €")

    def test_the_sessions_events_can_be_resumed_after_any(self):
        session = self.session()
        session.run("print('a')")
        session.run("print('b')")
        session.close()
        whole = list(session.events())
        self.assertEqual(whole[-1].kind, "session_ended")
        for event in whole:
            rest = [e.seq for e in session.events(after=event.seq)]
            self.assertEqual(rest, [e.seq for e in whole if e.seq > event.seq])

    def test_a_killed_node_loses_and_doubles_nothing_of_a_stream(self):
        session = self.session(policy={"writable": [self.base]})
        gates = [self.gate(f"k{n}") for n in range(3)]
        code = "\n".join(
            f"print('part {n}', flush=True); {gate.wait}" for n, gate in enumerate(gates)
        )
        found = []
        stream = session.stream(code + "\n'done'")
        for n, gate in enumerate(gates):
            for event in stream:
                found.append(event)
                if event.kind == "output" and event.text == f"part {n}\n":
                    break
            kill_node()
            gate.open()
        found += list(stream)
        texts = [event.text for event in found if event.kind == "output"]
        self.assertEqual(texts, ["part 0\n", "part 1\n", "part 2\n", "'done'\n"])
        again = session.turn(found[0].id).events()
        self.assertEqual([event.seq for event in found], [event.seq for event in again])
        self.assertTrue(found[-1].ok)

    def test_a_flood_over_a_killed_node_comes_whole(self):
        session = self.session()
        code = "for n in range(40_000): print(n)"
        killed, text = 0, []
        for event in session.stream(code):
            if event.kind == "output":
                text.append(event.text)
                if killed < 2 and sum(map(len, text)) > 40_000 * (killed + 1):
                    kill_node()
                    killed += 1
        self.assertEqual(killed, 2)
        self.assertEqual("".join(text), "".join(f"{n}\n" for n in range(40_000)))

    def test_a_turn_that_waits_through_a_killed_node_runs_once(self):
        session = self.session(policy={"writable": [self.base]})
        gate = self.gate("once")
        code = f"n = globals().get('n', 0) + 1\nprint('on', flush=True)\n{gate.wait}\nn"
        watcher = Windlass().attach(session.id)
        waiting = in_thread(lambda: session.run(code))
        for event in watcher.events():
            if event.kind == "output":
                break
        kill_node()
        gate.open()
        self.assertEqual(waiting().result, "1")
        self.assertEqual(session.run("n").result, "1")
        watcher._transport.close()

    def test_a_session_is_made_once_although_its_node_is_killed(self):
        kill_node() if self.client().status() else None
        with Windlass() as client, client.session(interpreter=python()) as session:
            self.assertEqual(session.run("1").result, "1")

    def test_a_display_in_pieces_is_one_event(self):
        code = (
            "class Picture:\n"
            "    def _repr_png_(self): return bytes(range(256)) * 4000\n"
            "Picture()"
        )
        shown = [e for e in self.session().stream(code) if isinstance(e, events.Display)]
        self.assertEqual([(e.mime, e.data) for e in shown], [("image/png", bytes(range(256)) * 4000)])

    def test_a_session_that_is_not_there_has_no_events(self):
        with self.assertRaises(windlass.SessionNotFound):
            session = self.session()
            session.id = "nobody"
            session.events().__next__()


if __name__ == "__main__":
    unittest.main()
