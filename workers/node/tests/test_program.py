"""The surroundings of a turn: arguments, directory, variables, and programs."""

import os
import unittest

from worker_case import WorkerCase


class Programs(WorkerCase):
    def begin(self, code, **context):
        self.keeper.turn += 1
        self.keeper.send(code.encode(), kind="turn_start", turn=self.keeper.turn, context=context)

    def until_idle(self):
        return self.keeper.until("idle", turn=self.keeper.turn)

    def assert_ends(self, told, status, outcome):
        self.assertEqual((told.events[-1].get("exit_code"), told.outcome), (status, outcome), told.traceback)

    def run_file(self, name, code, *args, **context):
        file = os.path.join(self.directory, name)
        self.write(name, code)
        self.begin(code, file=file, args=list(args), program=True, **context)
        return self.until_idle()

    def test_a_file_finds_itself_its_arguments_and_what_is_beside_it(self):
        self.write("sub/beside.cjs", "module.exports = require.main.filename")
        self.write("sub/other.mjs", "export const name = 'other'")
        code = (
            "import { name } from './other.mjs'\n"
            "console.log(process.argv.slice(2), __filename === process.argv[1], require('path').basename(__dirname));\n"
            "console.log(require('./beside.cjs') === __filename, require.main === module, name);\n"
            "'this value is not shown'"
        )
        told = self.run_file("sub/job.js", code, "a", "--b")
        self.assert_ends(told, 0, "ok")
        self.assertEqual(told.printed, "[ 'a', '--b' ] true sub\ntrue true other\n")
        self.assertEqual(told.result, "")
        # The next turn has none of it.
        self.assertEqual(self.result("[process.argv.length, typeof exports, typeof __filename]"), "[ 1, 'undefined', 'undefined' ]\n")

    def test_a_program_ends_when_nothing_is_left_to_do(self):
        code = (
            "process.on('exit', (status) => console.log('exit', status));\n"
            "process.once('beforeExit', () => setTimeout(() => console.log('again'), 5));\n"
            "setTimeout(() => { console.log('late'); process.exitCode = 3 }, 20);\n"
            "require('child_process').exec('echo child', (error, stdout) => console.log(stdout.trim()));"
        )
        told = self.run_file("late.js", code)
        self.assertEqual(sorted(told.printed.split("\n")[:2]), ["child", "late"])
        self.assertTrue(told.printed.endswith("again\nexit 3\n"), told.printed)
        self.assert_ends(told, 3, "error")
        self.assertEqual(self.result("process.listenerCount('exit') + process.listenerCount('beforeExit')"), "0\n")

    def test_stacks_name_the_file(self):
        code = "import fs from 'node:fs'; function f() { throw new Error('x') }; f()"
        for name, shown in (("a.mjs", None), ("a b'(c).js", "file://%s/a%%20b%%27%%28c%%29.js" % self.directory)):
            with self.subTest(name):
                path = os.path.join(self.directory, name)
                told = self.run_file(name, code)
                shown = shown or path
                self.assertEqual(told.traceback, "Error: x\n    at f (%s:1:48)\n    at %s:1:66\n" % (shown, shown))
        path = os.path.join(self.directory, "b.js")
        told = self.run_file("b.js", "1\nconsole.log(new Error('x').stack)")
        self.assertIn("at %s:2:13\n" % path, told.printed)
        told = self.run_file("b.js", "#!/usr/bin/env node\nlet x = = 1\n")
        self.assertEqual(told.traceback, "%s:2\nlet x = = 1\n        ^\n\nSyntaxError: Unexpected token '='\n" % path)
        told = self.run_file("b.js", "setTimeout(() => { throw new Error('late') }, 1)")
        self.assertIn("at Timeout.<anonymous> (%s:1:26)\n" % path, told.traceback)
        told = self.run_code("throw new Error('x')")
        self.assertIn("at <turn 6>:1:7\n", told.traceback)

    def test_the_exit_status(self):
        for code, status, outcome in (
            ("process.exit(7)", 7, "error"),
            ("setTimeout(() => process.exit(4), 5)", 4, "error"),
            ("process.exit()", 0, "ok"),
            ("process.exitCode = 5", 5, "error"),
            ("throw new Error('the end')", 1, "error"),
            ("setTimeout(() => { throw new Error('late') }, 5); setInterval(() => {}, 5)", 1, "error"),
            ("Promise.reject(new Error('nobody')); setInterval(() => {}, 5)", 1, "error"),
            ("await new Promise(() => {})", 13, "error"),
            ("let x = = 1", 1, "error"),
            ("async function main() { await null; return 5 }\nmain()", 0, "ok"),
            # The value of the last statement is not awaited.
            ("new Promise(() => {})", 0, "ok"),
            # Nothing settles it before the loop is empty.
            ("await require('timers/promises').setTimeout(60_000, null, { ref: false })", 13, "error"),
            ("process.exit(1.5)", 1, "error"),
            ("process.exit(2 ** 32 + 3)", 3, "error"),
            ("process.on('exit', () => { throw new Error('at the end') })", 1, "error"),
            ("process.on('exit', () => process.exit(6))", 6, "error"),
            ("process.on('exit', () => { process.exitCode = 4 })", 4, "error"),
            ("process.on('uncaughtException', () => {})", 0, "ok"),
            ("setTimeout(() => { throw new Error('after a listener that is gone') }, 5)", 1, "error"),
        ):
            with self.subTest(code=code):
                told = self.run_file("exits.js", code)
                self.assert_ends(told, status, outcome)
                self.assertEqual(told.result, "")
        self.assertEqual(self.result("process.exitCode"), "")

    def test_a_program_has_nothing_of_what_ran_before_it(self):
        main = "if (require.main === module) console.log('main', process.exitCode)"
        self.run_code("process.exitCode = 5")
        for _ in range(2):
            told = self.run_file("main.js", main)
            self.assert_ends(told, 0, "ok")
            self.assertEqual(told.printed, "main undefined\n")
        self.begin("setInterval(() => {}, 1000); process.exitCode = 7; console.log('on')", file="/x/set.js", program=True)
        self.keeper.until_printed("on\n")
        self.keeper.interrupt()
        self.until_idle()
        self.assert_ends(self.run_file("main.js", main), 0, "ok")

    def test_a_cell_can_end_with_any_number(self):
        for code, status in (("process.exit(1e10)", 1410065408), ("process.exit(1.5)", 1), ("process.exit('7')", 7)):
            with self.subTest(code=code):
                self.begin(code)
                self.assertEqual(self.until_idle().events[-1].get("exit_code"), status)

    def test_code_from_standard_input_has_its_name(self):
        self.begin("process.argv.slice(1)", file="-", args=["a", "b"])
        self.assertEqual(self.until_idle().result, "[ '-', 'a', 'b' ]\n")

    def test_a_program_that_waits_for_input_goes_on(self):
        file = os.path.join(self.directory, "ask.js")
        code = "const line = await prompt.async('? '); console.log('got', line); setTimeout(() => console.log('end'), 5)"
        self.begin(code, file=file, program=True)
        self.keeper.until("stdin_wait")
        self.keeper.answer(b"bob\n")
        told = self.until_idle()
        self.assert_ends(told, 0, "ok")
        self.assertEqual(told.printed, "got bob\nend\n")

    def test_a_program_that_waits_for_a_tool_goes_on(self):
        self.begin("console.log(await tools.twice({n: 4}), await tools.twice({n: 5}))", file="/x/tool.js", program=True)
        for number in (4, 5):
            call = self.keeper.until("tool_call").last
            answer = str(2 * number).encode()
            self.keeper.send(answer, kind="tool_result", turn=self.keeper.turn, call=call["call"], ok=True)
        told = self.until_idle()
        self.assert_ends(told, 0, "ok")
        self.assertEqual(told.printed, "8 10\n")

    def test_directory_and_variables_are_those_of_one_turn(self):
        os.mkdir(os.path.join(self.directory, "there"))
        there = os.path.join(os.path.realpath(self.directory), "there")
        look = "[process.cwd(), process.env.ONLY_HERE].join(' ')"
        self.begin(look, cwd=there, env={"ONLY_HERE": "yes"})
        told = self.until_idle()
        self.assertEqual(told.result, "'%s yes'\n" % there)
        self.assertEqual(self.result(look), "'%s '\n" % os.path.realpath(self.directory))
        self.begin(look, cwd=there + "/nowhere")
        told = self.until_idle()
        self.assertEqual((told.outcome, told.result), ("error", ""))

    def test_a_program_can_be_interrupted(self):
        code = "console.log('on'); setInterval(() => {}, 1000)"
        self.begin(code, file="/x/loop.js", program=True)
        self.keeper.until_printed("on\n")
        self.keeper.interrupt()
        self.assert_ends(self.until_idle(), 130, "interrupted")
        self.assertEqual(self.result("1 + 1"), "2\n")


if __name__ == "__main__":
    unittest.main()
