"""Evaluation: state, values, modules, TypeScript, errors."""

import unittest

from worker_case import MAJOR, WorkerCase


class Cells(WorkerCase):
    def test_state_stays_and_declarations_can_be_repeated(self):
        self.result("const a = 1; let b = 2; class C { f() { return 1 } }; function g() { return a }")
        self.assertEqual(self.result("const a = 10; let b = 20; class C { f() { return 2 } }; a + b + new C().f() + g()"), "42\n")

    def test_values(self):
        for code, shown in (
            ("1 + 1", "2\n"),
            ("'text'", "'text'\n"),
            ("undefined", ""),
            ("null", "null\n"),
            ("const x = 5", ""),
            ("({a: 1, b: [1, 2]})", "{ a: 1, b: [ 1, 2 ] }\n"),
            ("{}", ""),
            ("10n ** 20n", "100000000000000000000n\n"),
            ("await 5", "5\n"),
            ("await new Promise(r => setTimeout(r, 5, 'late'))", "'late'\n"),
            ("Promise.resolve(7)", "7\n"),
            ("let v = await Promise.resolve(3); v * 2", "6\n"),
            ("for await (const x of [1, 2]) x", "2\n"),
            ("if (true) { 8 }", "8\n"),
            ("// only a comment", ""),
            ("", ""),
            ("new Map([[1, {a: 2}]])", "Map(1) { 1 => { a: 2 } }\n"),
            ("Symbol('s')", "Symbol(s)\n"),
            ("`a${`b${1 + 1}`}c`", "'ab2c'\n"),
            ("'use strict'; this === globalThis", "true\n"),
        ):
            with self.subTest(code=code):
                self.assertEqual(self.result(code), shown)

    def test_a_thenable_that_never_settles_is_only_shown(self):
        self.assertIn("then", self.result("({then: 5})"))

    def test_a_large_result_comes_in_frames(self):
        told = self.run_code("'x'.repeat(500_000)")
        self.assertEqual(told.result, "'%s'\n" % ("x" * 500_000))
        self.assertGreater(len(told.all("output")), 1)

    def test_code_of_15_megabytes_runs(self):
        self.assertEqual(self.result("'%s'.length" % ("x" * 15_000_000)), "15000000\n")

    def test_a_value_that_cannot_be_shown_is_an_error(self):
        told = self.run_code("({[Symbol.for('nodejs.util.inspect.custom')]() { throw new RangeError('shy') }})")
        self.assertEqual((told.outcome, told.error["name"]), ("error", "RangeError"))


class Modules(WorkerCase):
    def test_imports(self):
        self.write("own.mjs", "export default 5; export const named = 6; export function f() { return import.meta.url }")
        self.write("own.cjs", "module.exports = {kind: 'cjs', dir: __dirname}")
        self.write("data.json", '{"a": [1]}')
        self.write("node_modules/pkg/package.json", '{"name": "pkg", "exports": {"import": "./i.mjs", "require": "./r.cjs"}}')
        self.write("node_modules/pkg/i.mjs", "export const way = 'import'")
        self.write("node_modules/pkg/r.cjs", "exports.way = 'require'")
        for code, shown in (
            ('import five, {named as six} from "./own.mjs"; five + six', "11\n"),
            ('import * as all from "./own.mjs"\nall.named', "6\n"),
            ('import dflt, * as both from "./own.mjs"; dflt + both.named', "11\n"),
            ('import {\n  readFileSync,\n  // a comment\n  existsSync as exists,\n} from "node:fs"; typeof readFileSync + typeof exists', "'functionfunction'\n"),
            ('import "./own.mjs"', ""),
            ('import own from "./own.cjs"; own.kind', "'cjs'\n"),
            ('import data from "./data.json" with {type: "json"}; data.a[0]', "1\n"),
            ('(await import("./own.mjs")).default', "5\n"),
            ('const name = "os"; typeof (await import(name)).cpus', "'function'\n"),
            ('import {way} from "pkg"; way', "'import'\n"),
            ('require("pkg").way', "'require'\n"),
            ('require("./own.cjs").dir === process.cwd()', "true\n"),
            ('require("./data.json").a.length', "1\n"),
            ('export const exported = 3; exported', "3\n"),
            ('"import x from y" + `import(${1})` + /import("a")/.source', '\'import x from yimport(1)import("a")\'\n'),
            ('({import: 1}).import', "1\n"),
            ('import.meta.dirname === process.cwd()', "true\n"),
            ('path.sep + typeof os.cpus', "'/function'\n"),
            ('const f = a => a / 2; f(4) / 1 // import("x")', "2\n"),
            ('five', "5\n"),
        ):
            with self.subTest(code=code):
                self.assertEqual(self.result(code), shown)

    def test_missing_modules_and_exports_are_errors(self):
        for code, name in (
            ('import x from "no-such-package"', "Error"),
            ('import {nothing} from "fs"', "SyntaxError"),
            ('await import("./none.mjs")', "Error"),
            ('require("./none")', "Error"),
        ):
            told = self.run_code(code)
            self.assertEqual((told.outcome, told.error["name"]), ("error", name), code)
        self.assertEqual(self.result("1 + 1"), "2\n")

    def test_imports_follow_the_working_directory(self):
        self.write("sub/here.mjs", "export default 'sub'")
        self.assertEqual(self.result('process.chdir("sub"); import x from "./here.mjs"; x'), "'sub'\n")

    def test_line_numbers_survive_an_import_of_several_lines(self):
        told = self.run_code('import {\n  sep,\n} from "path"\n\nnull.x')
        self.assertIn("<turn 1>:5:", told.traceback)


class TypeScript(WorkerCase):
    @unittest.skipIf(MAJOR < 22, "skipped: this Node cannot strip types")
    def test_types_are_stripped(self):
        for code, shown in (
            ("const n: number = 5; n", "5\n"),
            ("interface P { x: number }; const p = {x: 1} as P; p.x", "1\n"),
            ("enum Color { Red, Green }; Color.Green", "1\n"),
            ("function id<T>(x: T): T { return x }; id<string>('a')", "'a'\n"),
            ("type A = string | null; let a: A = await Promise.resolve('t'); a!", "'t'\n"),
            ("import type { Stats } from 'fs'; import { sep } from 'path'; sep satisfies string", "'/'\n"),
        ):
            with self.subTest(code=code):
                told = self.run_code(code)
                self.assertEqual((told.result, told.errors, told.traceback), (shown, "", ""))

    @unittest.skipIf(MAJOR < 24, "skipped: this Node cannot import TypeScript files")
    def test_a_typescript_file_is_imported(self):
        self.write("typed.ts", "export const one: number = 1")
        self.assertEqual(self.result('import {one} from "./typed.ts"; one'), "1\n")

    @unittest.skipIf(MAJOR >= 22, "skipped: this Node can strip types")
    def test_an_old_node_says_so(self):
        told = self.run_code("const n: number = 5")
        self.assertEqual(told.error["name"], "TypeScriptUnsupported")
        self.assertIn("22", told.error["message"])
        self.assertEqual(self.run_code("let a b").error["name"], "SyntaxError")


class Typed(WorkerCase):
    environment = {"WINDLASS_LANGUAGE": "typescript"}

    @unittest.skipIf(MAJOR < 22, "skipped: this Node cannot strip types")
    def test_the_language_decides(self):
        self.assertEqual(self.result("const f = <T>(x: T) => x; f<number>(1)"), "1\n")
        self.assertEqual(self.result("process.env.WINDLASS_LANGUAGE"), "")
        told = self.run_code("const x: = 5")
        self.assertEqual(told.error["name"], "SyntaxError")


class Errors(WorkerCase):
    def test_errors(self):
        for code, name, message in (
            ("throw new TypeError('bad')", "TypeError", "bad"),
            ("null.x", "TypeError", "Cannot read properties of null (reading 'x')"),
            ("nothing", "ReferenceError", "nothing is not defined"),
            ("class Mine extends Error {}; throw new Mine('m')", "Mine", "m"),
            ("throw 5", "Uncaught", "5"),
            ("throw {a: 1}", "Uncaught", "{ a: 1 }"),
            ("throw undefined", "Uncaught", "undefined"),
            ("await Promise.reject(new RangeError('r'))", "RangeError", "r"),
            ("Promise.reject(new RangeError('r'))", "RangeError", "r"),
            ("await null; nothing", "ReferenceError", "nothing is not defined"),
            ("let a b", "SyntaxError", "Unexpected identifier 'b'"),
            ("(", "SyntaxError", "Unexpected end of input"),
            ("eval('(')", "SyntaxError", "Unexpected end of input"),
            ("throw Object.defineProperty(new Error('m'), 'message', {get() { throw 1 }})", "Error", "<the message of the error cannot be shown>"),
            ("const r = () => r(); r()", "RangeError", "Maximum call stack size exceeded"),
            ("throw new Proxy({}, {get() { throw 1 }, getPrototypeOf() { throw 2 }})", "Uncaught", None),
        ):
            with self.subTest(code=code):
                told = self.run_code(code)
                self.assertEqual((told.outcome, told.error["name"]), ("error", name))
                if message is not None:
                    self.assertEqual(told.error["message"], message)
                self.assertNotEqual(told.traceback, "")
                self.assertNotIn("workers/", told.traceback)
                self.assertNotIn("node:inspector", told.traceback)

    def test_a_stack_names_the_turn_and_line(self):
        self.result("function broken() {\n  throw new Error('x')\n}")
        told = self.run_code("\n\nbroken()")
        self.assertEqual(
            told.traceback, "Error: x\n    at broken (<turn 1>:2:9)\n    at <turn 2>:3:1\n"
        )

    def test_a_syntax_error_shows_its_place(self):
        self.assertEqual(
            self.run_code("1\nlet a b").traceback,
            "<turn 1>:2\nlet a b\n      ^\n\nSyntaxError: Unexpected identifier 'b'\n",
        )

    def test_causes_and_properties_are_shown(self):
        told = self.run_code("throw Object.assign(new Error('outer', {cause: new Error('inner')}), {code: 'E1'})")
        self.assertIn("inner", told.traceback)
        self.assertIn("E1", told.traceback)

    def test_a_long_error_is_cut_in_the_header_and_whole_in_the_traceback(self):
        told = self.run_code("throw new Error('y'.repeat(300_000))")
        self.assertLess(len(told.error["message"]), 20_000)
        self.assertIn("y" * 300_000, told.traceback)

    def test_control_characters_and_half_surrogates_fit_the_header(self):
        told = self.run_code("throw new Error('\\u0001'.repeat(300_000) + '\\ud800')")
        self.assertEqual(told.outcome, "error")
        told = self.run_code("throw new Error('a\\ud800b')")
        self.assertEqual(told.error["message"], "a\ufffdb")

    def test_what_was_printed_before_an_error_is_kept(self):
        told = self.run_code("console.log('before'); throw new Error('x')")
        self.assertEqual(told.printed, "before\n")


    def test_the_place_of_an_error_is_that_in_the_source(self):
        self.assertIn("at <turn 1>:1:7\n", self.run_code("throw new Error('x')").traceback)
        self.assertIn("at <turn 2>:2:7\n", self.run_code("1\nthrow new Error('x')").traceback)
        self.assertIn("<turn 3>:1\na b\n  ^\n", self.run_code("a b").traceback)
        self.assertIn("<turn 4>:2\na b\n  ^\n", self.run_code("1\na b").traceback)

    def test_imports_leave_lines_and_columns(self):
        fails = "import fs from 'node:fs'; import {\n  join as j,\n} from 'node:path'; const f = () => { throw new Error('x') };\nf(await import('fs'), f())"
        told = self.run_code(fails)
        self.assertEqual(told.traceback, "Error: x\n    at f (<turn 1>:3:45)\n    at <turn 1>:4:23\n")
        told = self.run_code("import 'fs'; import 'fs'; throw new Error('y')")
        self.assertIn("at <turn 2>:1:33\n", told.traceback)
        told = self.run_code("'use strict'; throw new Error('z')")
        self.assertIn("at <turn 3>:1:21\n", told.traceback)

    def test_what_must_stand_first_does(self):
        self.assertEqual(self.result("#!/usr/bin/env node\n1 + 1"), "2\n")
        for strict in ("'use strict'; ", "// first\n/* and */ \"use strict\"\nvoid 0;"):
            self.assertEqual(self.result(strict + "(function () { return this })()"), "")
        self.assertEqual(self.result("'use strict'"), "'use strict'\n")
        self.assertEqual(self.result("'use stricter'"), "'use stricter'\n")


class Background(WorkerCase):
    def test_errors_of_earlier_turns_are_printed_and_end_nothing(self):
        # The turn is over when the timer ends, also on a slow machine.
        self.result(
            "const thrown = new Promise(r => setTimeout(() => { r(); throw new Error('late') }, 500));"
            "Promise.reject(new Error('unhandled')); 1"
        )
        told = self.run_code("await thrown; await new Promise(r => setTimeout(r, 20)); 'alive'")
        self.assertEqual(told.result, "'alive'\n")
        self.assertIn("Error: late", told.errors + told.stream("stderr", background=True))

    def test_an_unhandled_rejection_is_printed_within_its_turn(self):
        told = self.run_code("Promise.reject(new Error('left')); 2")
        self.assertEqual(told.result, "2\n")
        self.assertIn("Uncaught Error: left\n    at <turn 1>:1:16\n", told.errors)

    def test_listeners_of_the_code_get_uncaught_errors(self):
        self.result("process.on('uncaughtException', e => console.log('got', e.message)); 1")
        told = self.run_code("setTimeout(() => { throw new Error('x') }, 1); await new Promise(r => setTimeout(r, 30))")
        self.assertIn("got x\n", told.printed + told.stream("stdout", background=True))
        self.result("process.removeAllListeners(); 1")
        self.run_code("setTimeout(() => { throw new Error('x') }, 1); await new Promise(r => setTimeout(r, 30))")
        self.assertEqual(self.result("1 + 1"), "2\n")

    @unittest.skipIf(MAJOR < 24, "skipped: this Node does not know whose code runs")
    def test_output_of_an_earlier_turn_is_background_output_of_it(self):
        # The turn is over when the timer ends, also on a slow machine.
        self.result(
            "const printed = new Promise(r => setTimeout(async () => {"
            " console.log('early'); await null; console.error('later'); r() }, 500)); 1"
        )
        told = self.run_code("console.log('mine'); await printed; console.log('end')")
        self.assertEqual(told.printed, "mine\nend\n")
        background = [e for e in told.all("output") if e.get("background")]
        self.assertEqual([(e["turn"], e["stream"], e["body"]) for e in background], [(1, "stdout", b"early\n"), (1, "stderr", b"later\n")])

    def test_a_timer_runs_on_between_turns(self):
        self.result("globalThis.count = 0; globalThis.t = setInterval(() => console.log('tick', ++count), 5); 1")
        self.keeper.until_printed("tick 2\n")
        self.result("clearInterval(t)")


if __name__ == "__main__":
    unittest.main()
