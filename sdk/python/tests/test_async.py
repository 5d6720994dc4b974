"""The asynchronous client, against a real node."""

import asyncio
import gc
import io
import unittest
import warnings

from node import PATIENCE, NodeCase, kill_node, python

import windlass
from windlass import AsyncWindlass, current_call


class Async(NodeCase, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.w = AsyncWindlass()
        await self.w.__aenter__()

    async def asyncTearDown(self):
        await self.w.close()

    async def new(self, **options):
        session = await self.w.session(interpreter=python(), **options)
        self.addAsyncCleanup(self._close, session.id)
        return session

    async def _close(self, id):
        async with AsyncWindlass() as w:
            await (await w.attach(id)).close(grace=0)

    async def test_a_turn_gives_output_result_and_outcome(self):
        session = await self.new()
        turn = await session.run("print('hello')\n6 * 7")
        self.assertEqual((turn.ok, turn.output, turn.result), (True, "hello\n42\n", "42"))
        with self.assertRaises(windlass.TurnFailed):
            (await session.run("1 / 0")).raise_for_error()

    async def test_sessions_run_at_the_same_time(self):
        sessions = [await self.new() for _ in range(4)]
        turns = await asyncio.gather(*[s.run(f"{n} ** 2") for n, s in enumerate(sessions)])
        self.assertEqual([turn.result for turn in turns], ["0", "1", "4", "9"])
        self.assertEqual(len({one["id"] for one in await self.w.sessions()}), 4)

    async def test_input_is_answered_by_plain_and_async_functions(self):
        async def later(prompt, secret):
            await asyncio.sleep(0)
            return "Ada"

        session = await self.new()
        for answer in (later, lambda prompt, secret: "Ada"):
            turn = await session.run("input('name? ')", on_input=answer)
            self.assertEqual(turn.result, "'Ada'")
        self.assertEqual((await session.run("input()")).error.name, "EOFError")
        turn = await session.submit("input('?')")
        with self.assertRaises(windlass.InputNeeded):
            await turn.wait(PATIENCE)
        await turn.input("yes")
        self.assertEqual((await turn.wait()).result, "'yes'")

    async def test_a_cancelled_task_interrupts_its_turn(self):
        session = await self.new()
        await session.run("x = 7")
        running = asyncio.ensure_future(session.run("print('on', flush=True)\nwhile True: pass"))
        async with session.events() as events:
            async for event in events:
                if event.kind == "output" and event.text == "on\n":
                    break
            running.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await running
            async for event in events:
                if event.kind == "turn_ended":
                    break
        self.assertEqual(event.outcome, "interrupted")
        self.assertEqual((await session.run("x")).result, "7")

    async def test_a_killed_node_loses_and_doubles_nothing_of_a_stream(self):
        session = await self.new(policy={"writable": [self.base]})
        gate = self.gate("async-kill")
        found = []
        code = f"print('before', flush=True); {gate.wait}; print('after')"
        async for event in session.stream(code):
            found.append(event)
            if event.kind == "output" and event.text == "before\n":
                await asyncio.to_thread(kill_node)
                await asyncio.to_thread(gate.open)
        texts = [event.text for event in found if event.kind == "output"]
        self.assertEqual(texts, ["before\n", "after\n"])
        again = (await session.turn(found[0].id)).events()
        self.assertEqual([e.seq for e in found], [e.seq async for e in again])

    async def test_the_node_is_started_again_for_a_request(self):
        session = await self.new()
        await session.run("x = 1")
        await asyncio.to_thread(kill_node)
        self.assertEqual((await session.run("x")).result, "1")

    async def test_tools_run_in_the_loop_and_in_threads(self):
        session = await self.new()
        loop = asyncio.get_running_loop()

        @session.tool
        async def here(n: int) -> int:
            self.assertIs(asyncio.get_running_loop(), loop)
            return n + 1

        @session.tool(name="blocking")
        def elsewhere(n: int) -> str:
            return f"{n} for {current_call().session}"

        turn = (await session.run("tools.here(n=1), tools.blocking(n=2)")).raise_for_error()
        self.assertEqual(turn.result, repr((2, f"2 for {session.id}")))

    async def test_38_async_calls_are_open_at_the_same_time(self):
        session = await self.new()
        waiting, all_here = [], asyncio.Event()

        async def meet() -> int:
            waiting.append(1)
            if len(waiting) == 38:
                all_here.set()
            await all_here.wait()
            return 1

        await session.tools(meet)
        code = "import asyncio\nsum(await asyncio.gather(*[tools.meet() for _ in range(38)]))"
        self.assertEqual((await session.run(code)).raise_for_error().result, "38")

    async def test_a_tool_that_runs_code_in_its_own_session_is_refused_at_once(self):
        session = await self.new()

        @session.tool
        async def inner() -> str:
            return (await session.run("1")).result

        code = "try: tools.inner()\nexcept tools.ToolError as e: print(e.type)"
        self.assertEqual((await session.run(code)).output, "WouldDeadlock\n")

    async def test_a_large_result_of_an_async_tool_comes_whole(self):
        session = await self.new()

        async def much(count: int) -> str:
            return "x" * count

        await session.tools(much)
        turn = (await session.run("len(tools.much(count=950_000))")).raise_for_error()
        self.assertEqual(turn.result, "950000")

    async def test_files_go_in_and_come_out(self):
        session = await self.new()
        async with await session.files.watch() as changes:
            info = await session.files.put("a/b.txt", io.BytesIO(b"x" * 400_000))
            async for change in changes:
                if change.path.startswith("a"):
                    break
        self.assertEqual(info.bytes, 400_000)
        content = await session.files.get("a/b.txt")
        self.assertEqual((len(content), content.etag), (400_000, info.etag))
        out = io.BytesIO()
        await session.files.get_into("a/b.txt", out)
        self.assertEqual(out.getvalue(), content)
        self.assertEqual([e.path for e in await session.files.list("a")], ["a/b.txt"])
        with self.assertRaises(windlass.FileConflict):
            await session.files.write_back({"a/b.txt": b"new"}, etags={"a/b.txt": None})
        await session.files.delete("a/b.txt", etag=info.etag)

    async def test_errors_carry_code_message_and_remedy(self):
        with self.assertRaises(windlass.SessionNotFound) as caught:
            await self.w.attach("nobody")
        self.assertTrue(caught.exception.remedy)


class AsyncStart(NodeCase):
    def test_a_client_can_be_used_in_one_loop_after_another(self):
        client = AsyncWindlass()

        async def run():
            async with await client.session(interpreter=python()) as session:
                return (await session.run("1 + 1")).result

        with warnings.catch_warnings():
            # The first loop's connections end with that loop.
            warnings.simplefilter("ignore", ResourceWarning)
            self.assertEqual([asyncio.run(run()) for _ in range(2)], ["2", "2"])
            asyncio.run(client.close())
            gc.collect()

    def test_many_first_tasks_start_one_node(self):
        async def run():
            clients = [AsyncWindlass() for _ in range(8)]
            found = await asyncio.gather(*[client.status() for client in clients])
            for client in clients:
                await client.close()
            return {one["pid"] for one in found}

        self.assertEqual(len(asyncio.run(run())), 1)


if __name__ == "__main__":
    unittest.main()
