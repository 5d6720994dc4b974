"""Agents, against a real node. A scripted agent stands for the real ones."""

import pathlib
import shutil
import tempfile
import unittest

from node import NodeCase

import windlass
from windlass import agents

#: The agent that the node's own tests use.
ENGINE = pathlib.Path(__file__).parents[3] / "crates/windlass/tests/contract_agents/engine.py"


class Agents(NodeCase, unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        super().setUp()
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.workspace = place.name
        shutil.copy(ENGINE, self.workspace)

    def settings(self, **more):
        return {"workspace": self.workspace, **more}

    def test_a_run_yields_typed_events_and_its_conversation_goes_on(self):
        with windlass.Windlass() as w:
            with w.agent("acp:python3 engine.py", **self.settings()) as agent:
                seen = list(agent.run("say hello there"))
                self.assertIsInstance(seen[0], agents.Started)
                chunks = [one.text for one in seen if isinstance(one, agents.Message)]
                self.assertEqual("".join(chunks).strip(), "hello there")
                end = seen[-1]
                self.assertEqual((end.ok, end.answer.strip()), (True, "hello there"))
                usage = [one for one in seen if isinstance(one, agents.Usage)]
                self.assertEqual((usage[0].input_tokens, usage[0].output_tokens), (7, 5))
                token = agent.resume
            resumed = w.agent("acp:python3 engine.py", **self.settings(resume=token))
            with resumed:
                *_, end = resumed.run("fail no luck")
                self.assertEqual((end.ok, end.error["name"]), (False, "EngineFailed"))
                self.assertEqual(end.resume, token)

    def test_a_permission_is_answered_by_a_function(self):
        for choice, option in ((True, "once"), (False, "no"), ("ever", "ever")):
            asked = []

            def decide(permission):
                asked.append(permission)
                return choice

            with windlass.Windlass() as w:
                settings = self.settings(permissions="ask")
                with w.agent("acp:python3 engine.py", **settings) as agent:
                    seen = list(agent.run("ask rm", on_permission=decide))
            self.assertEqual([one.title for one in asked], ["rm"])
            decisions = [one for one in seen if isinstance(one, agents.Decision)]
            self.assertEqual([(one.option, one.by) for one in decisions], [(option, "client")])
            self.assertIn(f'"optionId": "{option}"', seen[-1].answer)

    async def test_an_async_run_yields_the_same(self):
        async def decide(permission):
            return permission.options[1].id

        async with windlass.AsyncWindlass() as w:
            settings = self.settings(permissions="ask")
            async with w.agent("acp:python3 engine.py", **settings) as agent:
                seen = [one async for one in agent.run("ask rm", on_permission=decide)]
        self.assertIsInstance(seen[-1], agents.Completed)
        self.assertTrue(any(isinstance(one, agents.Decision) and one.allowed for one in seen))


if __name__ == "__main__":
    unittest.main()
