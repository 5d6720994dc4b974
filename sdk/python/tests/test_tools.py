"""Host tools from plain functions, against a real node."""

import asyncio
import contextlib
import dataclasses
import enum
import io
import threading
import time
import unittest
from typing import Annotated, Literal, Optional, TypedDict, Union

from node import PATIENCE, NodeCase, in_thread, kill_node, python, within

import windlass
from windlass import Windlass, current_call


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    """A place."""

    x: float
    y: float = 0.0


class Options(TypedDict, total=False):
    deep: bool


class Verbose(NodeCase):
    def test_a_verbose_client_shows_calls_with_arguments_results_and_errors(self):
        client = self.client(verbose=True)
        session = self.session(client)

        def price(article: str) -> float:
            return {"tea": 4.25}[article]

        async def slow(text: str) -> str:
            return text * 1000

        session.tools(price, slow)
        shown = io.StringIO()
        with contextlib.redirect_stderr(shown):
            session.run("tools.price('tea')").raise_for_error()
            self.assertEqual(session.run("tools.price('gold')").outcome, "error")
            session.run("len(tools.slow('ab'))").raise_for_error()
        lines = shown.getvalue().splitlines()
        self.assertEqual(len(lines), 6, lines)
        head = f"windlass: [{session.id} "
        for line, expected in zip(
            lines,
            (
                '-> price({"article":"tea"})',
                "<- price: 4.25 (",
                '-> price({"article":"gold"})',
                "!! price: KeyError: 'gold' (",
                '-> slow({"text":"ab"})',
                '<- slow: "abab',
            ),
        ):
            self.assertTrue(line.startswith(head), line)
            self.assertIn(expected, line)
        self.assertLess(len(lines[-1]), 600)

    def test_other_clients_show_nothing(self):
        session = self.session()
        session.tools(len_of)
        shown = io.StringIO()
        with contextlib.redirect_stderr(shown):
            session.run("tools.len_of(text='abc')").raise_for_error()
        self.assertEqual(shown.getvalue(), "")


def len_of(text: str) -> int:
    return len(text)


class Tools(NodeCase):
    def test_a_function_is_called_with_values_of_its_types(self):
        session = self.session()
        seen = []

        @session.tool
        def paint(
            at: Point,
            colour: Colour,
            size: Annotated[int, "in pixels"] = 3,
            *,
            mode: Literal["fast", "nice"] = "fast",
            options: Optional[Options] = None,
            tags: Union[str, list[str]] = (),
        ) -> Point:
            """Paints a point.

            Nothing else.
            """
            seen.append((at, colour, size, mode, options, tags))
            return Point(at.x + size, at.y)

        turn = session.run(
            "tools.paint({'x': 1, 'y': 2}, 'blue', options={'deep': True}, tags=['a', 'b'])"
        ).raise_for_error()
        self.assertEqual(turn.result, "{'x': 4.0, 'y': 2.0}")
        self.assertEqual(
            seen, [(Point(1, 2), Colour.BLUE, 3, "fast", {"deep": True}, ["a", "b"])]
        )
        shown = session.run("help(tools.paint)").raise_for_error().output
        self.assertIn("Paints a point.", shown)
        self.assertIn("colour", shown)

    def test_wrong_arguments_are_said_by_name(self):
        session = self.session()

        @session.tool
        def move(to: Point, times: int = 1) -> None:
            self.fail("it must not be called")

        for code, message in [
            ("tools.move(to={'x': 'far'})", "to.x must be a number, not 'far'"),
            ("tools.move(to={})", "to argument x missing"),
            ("tools.move(to={'x': 1}, times=1.5)", "times must be an integer, not 1.5"),
            ("tools.move(to={'x': 1, 'z': 2})", "to argument z unknown; there are: x, y"),
        ]:
            error = session.run(code).error
            self.assertEqual((error.name, error.message), ("ToolError", message), code)

    def test_an_exception_arrives_with_its_own_message_and_type(self):
        session = self.session()

        @session.tool
        def fetch(name: str) -> str:
            raise LookupError(f"no such thing: {name}")

        code = (
            "try: tools.fetch(name='x')\n"
            "except tools.ToolError as error: print(error, error.type, error.tool)"
        )
        turn = session.run(code).raise_for_error()
        self.assertEqual(turn.output, "no such thing: x LookupError fetch\n")
        self.assertEqual(session.run("1 + 1").result, "2")

    def test_results_that_json_cannot_say_are_errors_of_the_call(self):
        session = self.session()
        session.tools(
            windlass.tool(lambda: object(), name="odd"),
            windlass.tool(lambda: float("nan"), name="no_number"),
            windlass.tool(lambda: {Colour.RED: 1}, name="odd_key"),
            windlass.tool(lambda: {3, 1}, name="some_set"),
        )
        for name in ("odd", "no_number", "odd_key"):
            self.assertEqual(session.run(f"tools.{name}()").error.name, "ToolError", name)
        self.assertEqual(session.run("sorted(tools.some_set())").result, "[1, 3]")

    def test_calls_run_at_the_same_time_sync_and_async(self):
        session = self.session()
        together = threading.Barrier(38)

        def meet() -> int:
            together.wait(PATIENCE)
            return 1

        waiting, all_here = [], asyncio.Event()

        async def gather_here() -> int:
            waiting.append(1)
            if len(waiting) == 38:
                all_here.set()
            await all_here.wait()
            return 1

        session.tools(meet, gather_here)
        for name in ("meet", "gather_here"):
            code = (
                "import asyncio\n"
                "for n in range(20): "
                f"total = sum(await asyncio.gather(*[tools.{name}() for _ in range(38)]))\n"
                "total"
            )
            self.assertEqual(session.run(code).raise_for_error().result, "38", name)

    def test_more_calls_than_threads_wait_and_all_are_answered(self):
        session = self.session()
        host = session.tools(windlass.tool(lambda n: n, name="same"))
        host._threads_max = 4
        code = (
            "import asyncio\n"
            "sum(await asyncio.gather(*[tools.same(n=n) for n in range(200)]))"
        )
        self.assertEqual(session.run(code).raise_for_error().result, str(sum(range(200))))
        self.assertLessEqual(host._threads, 4)

    def test_large_arguments_and_results_come_whole(self):
        session = self.session()
        session.tools(windlass.tool(lambda text: text[::-1], name="turned"))
        code = (
            "text = ''.join(map(str, range(200_000)))\n"
            "len(text), tools.turned(text=text) == text[::-1]"
        )
        self.assertEqual(session.run(code).raise_for_error().result, "(1088890, True)")

    def test_a_result_over_the_limit_fails_by_name(self):
        session = self.session()
        session.tools(windlass.tool(lambda: "x" * (17 * 1024 * 1024), name="much"))
        code = "try: tools.much()\nexcept tools.ToolError as error: print(error.code)"
        self.assertEqual(session.run(code).output, "message_too_large\n")

    def test_an_interrupt_cancels_sync_and_async_calls(self):
        session = self.session()
        started, seen = threading.Event(), {}
        ended = threading.Event()

        def busy() -> None:
            call = current_call()
            started.set()
            while not call.cancelled and time.monotonic() < call.deadline:
                threading.Event().wait(0.001)
            seen["busy"] = (call.cancelled, call.cancel_reason, call.session)
            ended.set()

        async def patient() -> None:
            started.set()
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                seen["patient"] = (True, current_call().cancel_reason, current_call().session)
                ended.set()
                raise

        session.tools(busy, patient)
        for name in ("busy", "patient"):
            started.clear()
            ended.clear()
            turn = session.submit(f"tools.{name}()")
            self.assertTrue(started.wait(PATIENCE))
            turn.interrupt()
            self.assertEqual(turn.wait(PATIENCE).outcome, "interrupted")
            self.assertTrue(ended.wait(PATIENCE))
            cancelled, reason, where = seen[name]
            self.assertEqual((cancelled, where), (True, session.id))
            # The node reports one reason, and the code that cancels its call the other; either may
            # come first.
            self.assertIn(reason, ("interrupted", "given_up"))
        self.assertEqual(session.run("1").result, "1")

    def test_a_deadline_of_the_code_cancels_the_call(self):
        session = self.session()
        ended = threading.Event()
        reasons = []

        async def never() -> None:
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                reasons.append(current_call().cancel_reason)
                ended.set()

        session.tools(never)
        # The tool has begun by then, also on a slow machine.
        self.assertEqual(session.run("tools(deadline=1).never()").error.name, "ToolDeadlinePassed")
        self.assertTrue(ended.wait(PATIENCE))
        self.assertEqual(reasons, ["deadline"])

    def test_a_tool_that_runs_code_in_its_own_session_is_refused_at_once(self):
        session = self.session()
        other = self.session()

        @session.tool
        def inner(where: str) -> str:
            target = {"same": session, "other": other}[where]
            return target.run("6 * 7").raise_for_error().result

        self.assertEqual(session.run("tools.inner(where='other')").result, "'42'")
        with within(20):
            turn = session.run("tools.inner(where='same')")
        self.assertEqual(turn.error.name, "ToolError")
        code = "try: tools.inner(where='same')\nexcept tools.ToolError as e: print(e.type)"
        self.assertEqual(session.run(code).output, "WouldDeadlock\n")

    def test_an_owners_tools_serve_present_and_future_sessions(self):
        client = self.client()
        before = self.session(client, owner="team-1")
        stranger = self.session(client)
        client.tools(windlass.tool(lambda: current_call().session, name="whoami"), owner="team-1")
        after = self.session(client, owner="team-1")
        for session in (before, after):
            self.assertEqual(session.run("tools.whoami()").result, repr(session.id))
        self.assertEqual(stranger.run("tools.whoami()").error.name, "ToolNotFound")

    def test_a_host_that_goes_takes_its_tools_along_and_open_calls_fail(self):
        session = self.session()
        started, over = threading.Event(), threading.Event()

        def hold() -> None:
            started.set()
            over.wait(PATIENCE)

        host = session.tools(hold)
        turn = session.submit("tools.hold()")
        self.assertTrue(started.wait(PATIENCE))
        host.close()
        self.assertEqual(turn.wait(PATIENCE).error.name, "ToolHostGone")
        over.set()
        self.assertEqual(session.run("tools.hold()").error.name, "ToolNotFound")

    def test_tools_are_declared_again_after_the_node_was_killed(self):
        session = self.session()
        host = session.tools(windlass.tool(lambda a: a + 1, name="next_one"))
        self.assertEqual(session.run("tools.next_one(a=1)").result, "2")
        reconnected = threading.Event()
        declare = host._declare

        def declared(socket):
            declare(socket)
            reconnected.set()

        host._declare = declared
        kill_node()
        self.assertEqual(session.run("1").result, "1")
        self.assertTrue(reconnected.wait(PATIENCE))
        # The node handles frames in order: a second declaration's answer follows the first's.
        session.tools(windlass.tool(lambda a: a + 2, name="next_two"))
        self.assertEqual(session.run("tools.next_one(a=1), tools.next_two(a=1)").result, "(2, 3)")

    def test_a_call_that_was_open_when_the_node_was_killed_is_cancelled(self):
        session = self.session()
        started, cancelled = threading.Event(), threading.Event()

        async def wait_long() -> None:
            started.set()
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                cancelled.set()

        session.tools(wait_long)
        turn = session.submit("tools.wait_long()")
        self.assertTrue(started.wait(PATIENCE))
        kill_node()
        self.assertTrue(cancelled.wait(PATIENCE))
        self.assertEqual(turn.wait(PATIENCE).error.name, "ToolHostGone")

    def test_a_declaration_that_is_refused_leaves_the_tools_as_they_were(self):
        session = self.session()
        session.tools(windlass.tool(lambda: 1, name="one"))
        with self.assertRaises(windlass.WindlassError):
            session.tools(windlass.tool(lambda: 2, name="windlass.list"))
        session.tools(windlass.tool(lambda: 3, name="three"))
        self.assertEqual(session.run("tools.one() + tools.three()").result, "4")

    def test_tools_can_be_grouped(self):
        session = self.session()
        session.tool(name="files.read", description="Reads.")(lambda path: f"<{path}>")
        self.assertEqual(session.run("tools.files.read(path='a')").result, "'<a>'")

    def test_a_tool_for_a_session_that_is_not_there_is_refused(self):
        session = self.session()
        session.close()
        with self.assertRaises(windlass.WindlassError) as caught:
            session.tools(windlass.tool(lambda: 1, name="late"))
        self.assertIn(caught.exception.code, ("session_ended", "session_not_found"))

    def test_a_session_that_ends_ends_its_host(self):
        session = self.session()
        host = session.tools(windlass.tool(lambda: 1, name="one"))
        other = self.client().attach(session.id)
        other.close()
        for thread in [t for t in threading.enumerate() if t.name.startswith("windlass-tools-")]:
            if getattr(thread, "_target", None) == host._serve:
                thread.join(PATIENCE)
                self.assertFalse(thread.is_alive())


class OverTcp(NodeCase):
    def test_tools_work_over_the_tcp_door(self):
        import subprocess

        from node import program

        subprocess.run([program(), "up", "--listen", "127.0.0.1:0"], check=True, capture_output=True)
        with Windlass(start=False) as local:
            url = f"http://{local.status()['listen']}"
        with Windlass(url=url) as client, client.session(interpreter=python()) as session:
            session.tools(windlass.tool(lambda text: text.upper(), name="upper"))
            code = "tools.upper(text='a' * 400_000) == 'A' * 400_000, tools.upper(text='é')"
            self.assertEqual(session.run(code).raise_for_error().result, "(True, 'É')")


class Circles(NodeCase):
    def test_two_sessions_that_call_each_other_do_not_wait_for_ever(self):
        first, second = self.session(), self.session()
        first.tools(windlass.tool(lambda: second.run("tools.back()").output, name="there"))
        second.tools(windlass.tool(lambda: first.run("1").result, name="back"))
        with within(30):
            turn = in_thread(lambda: first.run("print(tools.there())"))()
        self.assertTrue(turn.ok)
        self.assertIn("ToolError", turn.output)


if __name__ == "__main__":
    unittest.main()
