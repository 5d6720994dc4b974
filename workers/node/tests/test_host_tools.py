"""Host tools, with the test as the node that answers."""

import json
import unittest

from worker_case import WorkerCase


class Calls(WorkerCase):
    def test_typed_results(self):
        for value in (None, True, 1.5, "text", [1, [2]], {"a": {"b": None}}):
            for code in ("JSON.stringify(await tools.echo({x: 1}))", "JSON.stringify(tools.sync.echo({x: 1}))"):
                told = self.run_with_tools(code, {"echo": lambda given: value})
                self.assertEqual(json.loads(told.result.strip()[1:-1]), value)

    def test_arguments_and_groups(self):
        seen = []
        tools = {"files.read": lambda given: seen.append(given) or "body", "windlass.list": lambda given: ["a"], "search": lambda given: "found"}
        told = self.run_with_tools("[await tools.files.read({path: 'x'}), tools.sync['files.read'](), await tools.list(), await tools.search({query: 'q'})]", tools)
        self.assertEqual(told.result, "[ 'body', 'body', [ 'a' ], 'found' ]\n")
        self.assertEqual(seen, [{"path": "x"}, {}])

    def test_errors(self):
        told = self.run_with_tools("try { await tools.bad({}) } catch (e) { [e instanceof ToolError, e.code, e.message, e.type, e.tool] }", {"bad": lambda given: int("x")})
        self.assertIn("true, 'tool_failed'", " ".join(told.result.split()))
        told = self.run_with_tools("tools.sync.none({})", {})
        self.assertEqual((told.error["name"], "tool_not_found" in told.traceback), ("ToolError", True))
        for code in ("await tools.x(5)", "await tools.x([1])", "tools.sync.x({a: 1n})", "tools({})", "const c = {}; c.c = c; await tools.x(c)"):
            self.assertEqual(self.run_with_tools(code, {}).error["name"], "TypeError", code)
        self.assertIn("message_too_large", self.run_with_tools("await tools.x({a: 'x'.repeat(17 << 20)})", {}).traceback)

    def test_a_thousand_at_once(self):
        told = self.run_with_tools(
            "(await Promise.all(Array.from({length: 1024}, (_, n) => tools.twice({n})))).reduce((a, b) => a + b)",
            {"twice": lambda given: 2 * given["n"]},
        )
        self.assertEqual(told.result, "%d\n" % (1023 * 1024))

    def test_answers_may_be_mixed_and_chunked(self):
        self.keeper.start("(await Promise.all([tools.a({}), tools.b({})])).map(x => x.length)")
        first, second = self.keeper.until("tool_call").last, self.keeper.until("tool_call").last
        one, two = json.dumps("1" * 300_000).encode(), json.dumps("2" * 200_000).encode()
        self.keeper.send(b"", kind="tool_result", turn=1, call=999, ok=True)
        for at in range(0, 300_002, 100_001):
            self.keeper.send(one[at:at + 100_001], kind="tool_result", turn=1, call=first["call"], ok=True, more=at + 100_001 < len(one))
            if at == 0:
                self.keeper.send(two, kind="tool_result", turn=1, call=second["call"], ok=True)
        self.assertEqual(self.keeper.until("idle").result, "[ 300000, 200000 ]\n")

    def test_an_answer_that_fails_half_way(self):
        self.keeper.start("await tools.a({})")
        call = self.keeper.until("tool_call").last
        self.keeper.send(b'"half', kind="tool_result", turn=1, call=call["call"], ok=True, more=True)
        self.answer_tool(call, error={"message": "broke", "code": "tool_host_gone"})
        told = self.keeper.until("idle")
        self.assertEqual((told.error["message"], "tool_host_gone" in told.traceback), ("broke", True))

    def test_large_arguments_while_answers_arrive(self):
        told = self.run_with_tools(
            "(await Promise.all(Array.from({length: 12}, () => tools.same({s: 'x'.repeat(950_000)})))).map(x => x.s.length).join()",
            {"same": lambda given: given},
        )
        self.assertEqual(told.result, "'%s'\n" % ",".join(["950000"] * 12))

    def test_calls_end_with_their_turn(self):
        self.keeper.start("tools.slow({}).catch(e => console.log('ended', e.code)); 1")
        call = self.keeper.until("tool_call").last
        self.assertEqual(self.keeper.until("idle").outcome, "ok")
        self.answer_tool(call, "late")
        told = self.run_with_tools("await tools.now({})", {"now": lambda given: "mine"})
        self.assertEqual(told.result, "'mine'\n")

    def test_a_signal_cancels(self):
        self.keeper.start("const c = new AbortController(); setTimeout(() => c.abort(), 10); await tools.slow({}, {signal: c.signal})")
        self.keeper.until("tool_cancel")
        self.assertEqual(self.keeper.until("idle").error["name"], "AbortError")

    def test_a_deadline_is_sent(self):
        self.keeper.start("await tools.slow({}, {deadlineMs: 5})")
        call = self.keeper.until("tool_call").last
        self.assertEqual(call["deadline_ms"], 5)
        self.answer_tool(call, error={"message": "late", "code": "tool_deadline_passed"})
        self.assertIn("tool_deadline_passed", self.keeper.until("idle").traceback)

    def test_tools_can_be_shown_and_awaited(self):
        self.assertIn("unction", self.result("tools"))
        self.result("await tools; typeof tools.search")


if __name__ == "__main__":
    unittest.main()
