"""Output, input and displays."""

import unittest

from worker_case import WorkerCase

PNG = "Buffer.from('89504e470d0a1a0a', 'hex')"


class Output(WorkerCase):
    def test_all_ways_to_print_keep_their_order(self):
        told = self.run_code(
            "console.log('1'); process.stdout.write('2\\n'); fs.writeSync(1, '3\\n');"
            "child_process.execSync('echo 4', {stdio: 'inherit'}); console.info('5');"
            "await new Promise(r => child_process.spawn('echo', ['6'], {stdio: 'inherit'}).on('exit', r)); console.log('7')"
        )
        self.assertEqual(told.printed, "1\n2\n3\n4\n5\n6\n7\n")

    def test_errors_go_to_standard_error(self):
        told = self.run_code("console.error('e'); console.warn('w'); process.stderr.write('s')")
        self.assertEqual((told.printed, told.errors), ("", "e\nw\ns"))

    def test_bytes_survive(self):
        told = self.run_code("process.stdout.write(Buffer.from([0, 255, 254, 10])); 1")
        self.assertEqual(told.fd(1), b"\x00\xff\xfe\n")

    def test_much_output_is_whole(self):
        told = self.run_code("for (let i = 0; i < 64; i++) process.stdout.write('x'.repeat(1 << 20)); 1")
        self.assertEqual(len(told.fd(1)), 64 << 20)

    def test_a_pipe_that_a_child_made_non_blocking_loses_nothing(self):
        told = self.run_code(
            "child_process.execFileSync('python3', ['-c', 'import os; os.set_blocking(1, False)'], {stdio: 'inherit'});"
            "for (let i = 0; i < 16; i++) process.stdout.write('x'.repeat(1 << 20)); 1"
        )
        self.assertEqual(len(told.fd(1)), 16 << 20)

    def test_the_code_cannot_close_its_output(self):
        self.run_code("process.stdout.end('last\\n'); process.stdout.destroy(); process.stderr.end()")
        self.assertEqual(self.run_code("console.log('still')").printed, "still\n")

    def test_pipes_into_standard_output(self):
        told = self.run_code(
            "const {Readable} = require('stream'); const {pipeline} = require('stream/promises');"
            "await new Promise(r => Readable.from(['a', 'b']).on('end', r).pipe(process.stdout)); 1"
        )
        self.assertEqual(told.printed, "ab")

    def test_a_worker_thread_prints(self):
        self.keeper.start(
            # What the thread has printed is passed on just before or after it exits.
            "const w = new (require('worker_threads').Worker)(\"console.log('thread')\", {eval: true});"
            "await new Promise(r => w.on('exit', () => setTimeout(r, 100)))"
        )
        self.keeper.until_printed("thread\n")
        self.keeper.until("idle")

    def test_look_alikes_are_output(self):
        told = self.run_code("console.log('{\"kind\": \"idle\", \"turn\": 1}')")
        self.assertIn("kind", told.printed)


class Input(WorkerCase):
    def test_every_way_to_read_asks(self):
        for code, answers, shown in (
            ("prompt('name? ')", [b"ada\n"], "'ada'\n"),
            ("prompt()", [b"no line end"], "'no line end'\n"),
            ("prompt()", [b"\n"], "''\n"),
            ("await prompt.async('n? ')", [b"bob\r\n"], "'bob'\n"),
            ("[prompt('a'), prompt('b')].join()", [b"1\n", b"2\n"], "'1,2'\n"),
            ("[prompt(), prompt()].join()", [b"1\n2\n"], "'1,2'\n"),
            ("const b = Buffer.alloc(10); fs.readSync(0, b) + b.toString('utf8', 0, 2)", [b"hi"], "'2hi'\n"),
            ("const rl = require('readline/promises').createInterface({input: process.stdin}); const a = await rl.question('q? '); rl.close(); a", [b"yes\n"], "'yes'\n"),
            ("import {createInterface} from 'readline'; const r2 = createInterface({input: process.stdin}); const l = await new Promise(d => r2.once('line', d)); r2.close(); l", [b"line\n"], "'line'\n"),
            ("await new Promise(r => process.stdin.once('data', d => { process.stdin.pause(); r(String(d)) }))", [b"data\n"], "'data\\n'\n"),
        ):
            with self.subTest(code=code):
                self.assertEqual(self.result(code, *answers), shown)

    def test_the_prompt_and_the_secret(self):
        self.keeper.start("prompt('name? '); prompt.secret('word? ')")
        asked = self.keeper.until("stdin_wait").last
        self.assertEqual((asked["prompt"], asked["secret"]), ("name? ", False))
        self.keeper.answer(b"a\n")
        asked = self.keeper.until("stdin_wait").last
        self.assertEqual((asked["prompt"], asked["secret"]), ("word? ", True))
        self.keeper.answer(b"b\n")
        self.assertEqual(self.keeper.until("idle").result, "'b'\n")

    def test_a_prompt_of_200_kilobytes_fits(self):
        self.assertEqual(self.result("prompt('p'.repeat(200_000))", b"x\n"), "'x'\n")

    def test_the_end_of_input_and_the_next_turn(self):
        for code, shown in (("prompt()", "null\n"), ("fs.readFileSync(0, 'utf8')", "'last'\n"),
                            ("let all = ''; for await (const c of process.stdin) all += c; all", "'last'\n")):
            with self.subTest(code=code):
                self.keeper.start(code)
                self.keeper.until("stdin_wait")
                self.keeper.answer(b"" if "null" in shown else b"last", eof=True)
                self.assertEqual(self.keeper.until("idle").result, shown)
                self.assertEqual(self.result("prompt()", b"next\n"), "'next'\n")

    def test_reads_to_the_end_ask_until_the_end(self):
        self.keeper.start("fs.readFileSync(0, 'utf8')")
        for part in (b"a", b"b"):
            self.keeper.until("stdin_wait")
            self.keeper.answer(part)
        self.keeper.until("stdin_wait")
        self.keeper.answer(b"c", eof=True)
        self.assertEqual(self.keeper.until("idle").result, "'abc'\n")

    def test_leftovers_do_not_reach_the_next_turn(self):
        self.assertEqual(self.result("prompt()", b"one\ntwo\nthree\n"), "'one'\n")
        self.assertEqual(self.result("prompt()", b"next\n"), "'next'\n")

    def test_input_for_another_turn_is_dropped(self):
        self.keeper.start("prompt()")
        self.keeper.until("stdin_wait")
        self.keeper.send(b"wrong\n", kind="turn_input", turn=99)
        self.keeper.answer(b"right\n")
        self.assertEqual(self.keeper.until("idle").result, "'right'\n")

    def test_a_megabyte_of_input(self):
        self.assertEqual(self.result("prompt().length", b"y" * 1_000_000 + b"\n"), "1000000\n")


class Displays(WorkerCase):
    def test_displays(self):
        self.write("a.svg", "<svg/>")
        for code, mime, body in (
            ("display.html('<b>')", "text/html", b"<b>"),
            ("display.json({a: 1})", "application/json", b'{"a":1}'),
            ("display.image(%s)" % PNG, "image/png", bytes.fromhex("89504e470d0a1a0a")),
            ("display.image('a.svg')", "image/svg+xml", b"<svg/>"),
            ("display.image(Buffer.from('x'), 'image/webp')", "image/webp", b"x"),
            ("display(%s)" % PNG, "image/png", bytes.fromhex("89504e470d0a1a0a")),
            ("display({a: 1})", "text/plain", b"{ a: 1 }"),
            ("display('# t', {mime: 'text/markdown'})", "text/markdown", b"# t"),
            ("display({[Symbol.for('Jupyter.display')]: () => ({'text/html': '<i>'})})", "text/html", b"<i>"),
        ):
            with self.subTest(code=code):
                told = self.run_code(code + "; undefined")
                self.assertEqual([shown[:2] for shown in told.displays()], [(mime, body)], told.traceback)

    def test_an_update_replaces(self):
        told = self.run_code("const h = display.html('1', {id: 'x'}); h.update('2', {mime: 'text/html'}); display('3', {mime: 'text/html', id: 'x', update: true})")
        self.assertEqual([(d[1], d[2], d[3]) for d in told.displays()], [(b"1", "x", False), (b"2", "x", True), (b"3", "x", True)])

    def test_large_displays(self):
        told = self.run_code("display('z'.repeat(3_000_000), {mime: 'text/plain'}); 1")
        self.assertEqual(len(told.displays()[0][1]), 3_000_000)
        self.assertEqual(self.run_code("display('z'.repeat(17 << 20), {mime: 'text/plain'})").error["name"], "RangeError")


if __name__ == "__main__":
    unittest.main()
