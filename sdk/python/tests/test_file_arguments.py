"""Tools whose arguments are files of the workspace, against a real node."""

import asyncio
import json
import os
import tempfile
import threading
import unittest
from pathlib import Path
from typing import Annotated, Optional
from unittest import mock

from node import PATIENCE, NodeCase, in_thread, python

import windlass
from windlass import AsyncWindlass, File, FileTooLarge, _file_calls, _host_copies
from windlass._calls import Call

#: Runs a call that fails, and shows the error's type and message.
CAUGHT = "try: {0}\nexcept tools.ToolError as error: print(error.type, '|', error)"


class FileCase(NodeCase):
    """Copies of files are made in a directory of the test, which is empty after each test."""

    def setUp(self):
        super().setUp()
        self.copies = tempfile.mkdtemp(prefix="copies-", dir=self.base)
        before = tempfile.tempdir
        tempfile.tempdir = self.copies
        self.addCleanup(setattr, tempfile, "tempdir", before)

    def assert_no_copies(self):
        self.assertEqual(os.listdir(self.copies), [])

    def check(self, session, code, output):
        self.assertEqual(session.run(code).raise_for_error().output, output)
        self.assert_no_copies()

    def check_error(self, session, call, kind, words):
        output = session.run(CAUGHT.format(call)).raise_for_error().output
        self.assertTrue(output.startswith(f"{kind} | "), output)
        self.assertIn(words, output)
        self.assert_no_copies()


def append(file: Annotated[Path, File(write_back=True)], text: str) -> str:
    """Appends to a file."""
    with open(file, "a") as opened:
        opened.write(text)
    return file.read_text()


class FileArguments(FileCase):
    def test_a_tool_gets_a_private_copy_with_the_name_of_the_file(self):
        session = self.session()
        session.files.put("data/in put.txt", "one\n")
        seen = []

        def read(file: Annotated[Path, "what to read", File()], at: Annotated[str, File]) -> str:
            seen.append((file, at, file.parent.parent.stat().st_mode & 0o777))
            file.write_text("changed")
            return Path(at).read_text()

        session.tools(read)
        session.run("open('plain', 'w').write('two')").raise_for_error()
        self.check(session, "print(tools.read('./data//in put.txt', 'plain'))", "two\n")
        file, at, mode = seen[0]
        self.assertEqual((file.name, Path(at).name, mode), ("in put.txt", "plain", 0o700))
        self.assertTrue(file.is_relative_to(self.copies))
        # Without write-back nothing that the tool does is seen.
        self.check(session, "print(open('data/in put.txt').read())", "one\n\n")
        shown = session.run("help(tools.read)").output
        self.assertIn("read(file: str, at: str)", shown)
        self.assertIn("what to read. The path of a file in the workspace.", shown)

    def test_the_schema_declares_files_for_every_side(self):
        made = windlass.tool(append).input_schema["properties"]["file"]
        self.assertEqual((made["type"], made["format"]), ("string", "windlass-file-write-back"))
        self.assertIn("which the tool may change", made["description"])

        def read(files: list[Annotated[Path, File()]], other: Optional[Annotated[str, File()]] = None):
            pass

        properties = windlass.tool(read).input_schema["properties"]
        self.assertEqual(properties["files"]["items"]["format"], "windlass-file")
        self.assertEqual(properties["other"]["anyOf"][0]["format"], "windlass-file")
        for wrong in (int, Optional[Path], bytes):

            def odd(file):
                pass

            odd.__annotations__["file"] = Annotated[wrong, File()]
            with self.assertRaises(TypeError):
                windlass.tool(odd)

    def test_a_change_is_in_the_workspace_when_the_call_returns(self):
        session = self.session()
        session.tools(append)
        code = (
            "import os, pathlib\n"
            "open('log', 'w').write('a')\n"
            "os.chmod('log', 0o640)\n"
            "for n in range(20):\n"
            "    result = tools.append(file='log', text='b')\n"
            "    assert open('log').read() == result, (n, result)\n"
            "print(result, oct(os.stat('log').st_mode))"
        )
        self.check(session, code, "a" + "b" * 20 + " 0o100640\n")

    def test_path_objects_and_absolute_paths_name_files_of_the_workspace(self):
        session = self.session()
        session.tools(append)
        code = (
            "import os, pathlib\n"
            "os.mkdir('sub'); os.chdir('sub')\n"
            "pathlib.Path('here').write_text('x')\n"
            "tools.append(pathlib.Path('here').resolve(), 'y')\n"
            "tools.append(pathlib.PurePosixPath('sub/here'), text='z')\n"
            "print(open('here').read())"
        )
        self.check(session, code, "xyz\n")

    def test_several_files_are_written_back_together_or_not_at_all(self):
        session = self.session()

        @session.tool
        def move(
            source: Annotated[Path, File(write_back=True)],
            target: Annotated[Path, File(write_back=True)],
            again: Annotated[Path, File()],
        ) -> bool:
            target.write_bytes(source.read_bytes())
            source.write_bytes(b"")
            return again == source

        code = (
            "open('a', 'w').write('content')\n"
            "print(tools.move('a', 'new/dir/b', './a'), repr(open('a').read()), open('new/dir/b').read())"
        )
        self.check(session, code, "True '' content\n")
        session.run("open('a', 'w').write('more'); import os; os.symlink('a', 'link')")
        self.check_error(session, "tools.move('a', 'link', 'a')", "PathRefused", "symlink")
        self.check(session, "print(open('a').read())", "more\n")

    def test_a_conflict_overwrites_nothing(self):
        session = self.session()
        started, go_on = threading.Event(), threading.Event()

        @session.tool
        def slow(file: Annotated[Path, File(write_back=True)]) -> None:
            started.set()
            go_on.wait(PATIENCE)
            file.write_text("the tool's")

        def change():
            started.wait(PATIENCE)
            session.files.put("shared", "the other's")
            go_on.set()

        session.files.put("shared", "old")
        changed = in_thread(change)
        self.check_error(session, "tools.slow('shared')", "FileConflict", "shared")
        changed()
        self.check(session, "print(open('shared').read())", "the other's\n")
        # The code itself, in a thread, while the call is open.
        started.clear()
        go_on.clear()
        go_on_when_changed = (
            "import threading, time, asyncio\n"
            "call = threading.Thread(target=lambda: caught.append(attempt()))\n"
            "caught = []\n"
            "def attempt():\n"
            "    try: tools.slow.blocking('shared')\n"
            "    except tools.ToolError as error: return error.type\n"
            "call.start()\n"
            "tools.wait_started()\n"
            "open('shared', 'w').write('the code')\n"
            "tools.release(); call.join()\n"
            "print(caught, open('shared').read())"
        )
        session.tools(
            windlass.tool(lambda: started.wait(PATIENCE), name="wait_started"),
            windlass.tool(lambda: go_on.set(), name="release"),
        )
        self.check(session, go_on_when_changed, "['FileConflict'] the code\n")

    def test_a_file_that_came_meanwhile_is_not_overwritten(self):
        session = self.session()

        @session.tool
        def make(file: Annotated[Path, File(write_back=True)]) -> None:
            file.write_text("the tool's")
            session.files.put("new", "the other's")

        self.check_error(session, "tools.make('new')", "FileConflict", "new")
        self.check(session, "print(open('new').read())", "the other's\n")

    def test_a_tool_that_fails_writes_nothing_back(self):
        session = self.session()

        @session.tool
        def broken(file: Annotated[Path, File(write_back=True)], how: str) -> object:
            file.write_text("half")
            if how == "raises":
                raise ValueError("half done")
            return object() if how == "odd" else "x" * (17 << 20)

        session.files.put("kept", "whole")
        self.check_error(session, "tools.broken('kept', 'raises')", "ValueError", "half done")
        self.check_error(session, "tools.broken('kept', 'odd')", "TypeError", "cannot say")
        self.check_error(session, "tools.broken('kept', 'large')", "BadRequest", "the limit is")
        self.check(session, "print(open('kept').read())", "whole\n")

    def test_a_missing_file_is_an_error_or_made_by_the_tool(self):
        session = self.session()

        @session.tool
        def read(file: Annotated[Path, File()]) -> str:
            self.fail("it must not be called")

        @session.tool
        def perhaps(file: Annotated[Path, File(write_back=True)], write: bool) -> bool:
            existed = file.exists()
            if write:
                file.write_text("made")
            return existed

        self.check_error(session, "tools.read('data/none')", "FileNotFoundError", "'data/none'")
        code = (
            "import os\n"
            "print(tools.perhaps('a/b', False), os.path.exists('a'))\n"
            "print(tools.perhaps('a/b', True), open('a/b').read())"
        )
        self.check(session, code, "False False\nFalse made\n")

    def test_a_copy_that_is_removed_or_replaced_by_a_link_changes_nothing(self):
        session = self.session()

        @session.tool
        def swap(file: Annotated[Path, File(write_back=True)], target: Optional[str] = None) -> None:
            file.unlink()
            if target:
                file.symlink_to(target)

        session.files.put("kept", "whole")
        self.check(session, "tools.swap('kept')\nprint(open('kept').read())", "whole\n")
        self.check_error(session, "tools.swap('kept', '/etc/passwd')", "PathRefused", "copy")
        self.check(session, "print(open('kept').read())", "whole\n")

    def test_sizes_and_numbers_are_bounded(self):
        session = self.session()
        session.tools(append)

        @session.tool
        def read(files: list[Annotated[Path, File()]]) -> int:
            return sum(len(file.read_bytes()) for file in files)

        session.run("for n in range(70): open(f'f{n}', 'w').write('x' * 100)").raise_for_error()
        self.check(session, "print(tools.read([f'f{n}' for n in range(64)]))", "6400\n")
        many = "tools.read([f'f{n}' for n in range(65)])"
        self.check_error(session, many, "FileTooLarge", "more than 64 files")
        with mock.patch.object(_host_copies, "FILE_BYTES_MAX", 100):
            self.check(session, "print(tools.read(['f1']))", "100\n")
            self.check_error(session, "tools.append('f1', 'x')", "FileTooLarge", "100 bytes")
            self.check(session, "print(len(open('f1').read()))", "100\n")
            session.run("open('f2', 'a').write('x')")
            self.check_error(session, "tools.read(['f2'])", "FileTooLarge", "'f2' has more than 100")
        with mock.patch.object(_host_copies, "CALL_BYTES_MAX", 250):
            self.check_error(session, "tools.read(['f3', 'f4', 'f5'])", "FileTooLarge", "together")
        code = f"open('huge', 'w').truncate({_host_copies.FILE_BYTES_MAX + 1})"
        session.run(code).raise_for_error()
        self.check_error(session, "tools.read(['huge'])", "FileTooLarge", "'huge'")
        self.assertIs(FileTooLarge, _host_copies.FileTooLarge)

    def test_the_copies_of_all_open_calls_are_bounded(self):
        session = self.session()
        entered, go_on = threading.Semaphore(0), threading.Event()
        self.addCleanup(go_on.set)

        @session.tool
        def hold(file: Annotated[Path, File(write_back=True)]) -> int:
            entered.release()
            go_on.wait(PATIENCE)
            # A write-back counts the bytes of the call again, and those of the process not at all.
            file.write_bytes(b"y" * 100)
            return file.stat().st_size

        @session.tool
        def read(file: Annotated[Path, File()]) -> int:
            return file.stat().st_size

        session.run("for n in range(4): open(f'f{n}', 'w').write('x' * 100)").raise_for_error()
        holding = "import asyncio\nprint(await asyncio.gather(*[tools.hold(f'f{n}') for n in range(3)]))"
        with mock.patch.object(_host_copies, "HOST_BYTES_MAX", 350):
            other = self.session()
            other.tools(windlass.tool(_read, name="read"))
            other.files.put("small", "x" * 50)
            other.files.put("large", "x" * 51)
            turn = session.submit(holding)
            for _ in range(3):
                self.assertTrue(entered.acquire(timeout=PATIENCE))
            self.assertEqual(_host_copies._budget.held, 300)
            output = other.run(CAUGHT.format("tools.read('large')")).raise_for_error().output
            self.assertRegex(output, r"^FileTooLarge \| the files of all open calls have more than 350")
            self.assertEqual(other.run("len(tools.read('small'))").result, "50")
            go_on.set()
            self.assertEqual(turn.wait(PATIENCE).output, "[100, 100, 100]\n")
            self.check(session, "print(tools.read('f3'), open('f0').read()[:1])", "100 y\n")
            self.assertEqual(other.run("len(tools.read('large'))").result, "51")
            # A call whose function fails gives its bytes back too.
            self.check_error(session, "tools.read('none')", "FileNotFoundError", "none")
        self.assertEqual(_host_copies._budget.held, 0)

    def test_no_path_leads_out_of_the_workspace(self):
        session = self.session()
        session.tools(append)
        session.run(
            "import os\nos.symlink('/etc', 'away'); os.symlink('/etc/passwd', 'names'); os.mkfifo('pipe')"
        ).raise_for_error()
        for path, words in [
            ("../../etc/passwd", "refused"),
            ("/etc/passwd", "not in the workspace"),
            ("away/passwd", "refused"),
            ("names", "symlink"),
            ("pipe", "not a regular file"),
            ("/proc/self/environ", "not in the workspace"),
            ("", "names no file"),
            ("./", "names no file"),
            ("a" * 5000, "longer than 4000 bytes"),
            ("a\0b", "NUL"),
        ]:
            self.check_error(session, f"tools.append({path!r}, 'x')", "PathRefused", words)
        error = session.run("tools.append(7, 'x')").error
        self.assertEqual(error.message, "file must be the path of a file, not 7")
        # A file whose name is also an endpoint's.
        self.check(session, "print(tools.append('watch', 'x'))", "x\n")
        self.check(session, "print(tools.append('watch', 'y'))", "xy\n")

    def test_an_interrupt_writes_nothing_and_removes_the_copies(self):
        session = self.session()
        started, over, removed = threading.Event(), threading.Event(), threading.Event()
        close = _host_copies.HostCopies.close

        def closed(copies):
            close(copies)
            removed.set()

        @session.tool
        def plain(file: Annotated[Path, File(write_back=True)]) -> None:
            file.write_text("late")
            started.set()
            over.wait(PATIENCE)

        @session.tool
        async def coroutine(file: Annotated[Path, File(write_back=True)]) -> None:
            file.write_text("late")
            started.set()
            await asyncio.sleep(PATIENCE)

        session.tools(windlass.tool(lambda: None, name="ping"))
        session.files.put("kept", "whole")
        for name in ("plain", "coroutine"):
            for event in (started, over, removed):
                event.clear()
            with mock.patch.object(_host_copies.HostCopies, "close", closed):
                turn = session.submit(f"tools.{name}('kept')")
                self.assertTrue(started.wait(PATIENCE))
                turn.interrupt()
                self.assertEqual(turn.wait(PATIENCE).outcome, "interrupted")
                # The host learns of the interrupt before any later call.
                session.run("tools.ping()").raise_for_error()
                over.set()
                self.assertTrue(removed.wait(PATIENCE))
            self.check(session, "print(open('kept').read())", "whole\n")

    def test_a_call_that_ends_during_its_write_back_writes_nothing(self):
        session = self.session()
        calls = []

        @session.tool
        def change(files: list[Annotated[Path, File(write_back=True)]]) -> None:
            calls.append(windlass.current_call())
            for file in files:
                file.write_bytes(b"x" * 1_000_000)

        def ends_after_comparing(file):
            digest = compare(file)
            calls[-1].cancelled = True
            return digest

        def ends_while_comparing(file):
            calls[-1].cancelled = True
            return compare(file)

        def ends_while_sending(header, body):
            for number, frame in enumerate(frames(header, body)):
                if header["path"] == "b" and number == 2:
                    calls[-1].cancelled = True
                yield frame

        compare, frames = _host_copies._digest, _file_calls.message
        for where, name, ends in [
            (_host_copies, "_digest", ends_after_comparing),
            (_host_copies, "_digest", ends_while_comparing),
            (_file_calls, "message", ends_while_sending),
        ]:
            session.files.put("a", "old")
            session.files.put("b", "old")
            with self.subTest(ends.__name__), mock.patch.object(where, name, ends):
                self.check_error(session, "tools.change(['a', 'b'])", "WindlassError", "written back")
                self.check(session, "print(open('a').read(), open('b').read())", "old old\n")
        self.check(session, "tools.change(['a', 'b'])\nprint(len(open('b').read()))", "1000000\n")


class Policies(FileCase):
    def test_a_tool_reads_but_writes_nothing_where_the_code_may_only_read(self):
        work = tempfile.mkdtemp(dir=self.base)
        Path(work, "given").write_text("old")
        session = self.session(workspace=work, policy="read-only")
        session.tools(append, windlass.tool(_read, name="read"))
        self.check(session, "print(tools.read('given'))", "old\n")
        with self.assertRaises(windlass.PathRefused):
            session.files.write_back({"new": b"x"}, within_policy=True)
        for name in ("given", "new"):
            call = f"tools.append({name!r}, 'x')"
            self.check_error(session, call, "PathRefused", "only read the workspace")
        self.assertEqual((os.listdir(work), Path(work, "given").read_text()), (["given"], "old"))

    def test_a_tool_cannot_be_made_to_write_a_protected_file(self):
        work = tempfile.mkdtemp(dir=self.base)
        Path(work, ".git/hooks").mkdir(parents=True)
        Path(work, ".git/HEAD").write_text("ref: refs/heads/main\n")
        session = self.session(workspace=work)
        session.tools(append)
        protected = "import os; os.symlink('.git', 'door')\nopen('.git/hooks/x', 'w')"
        if session.run(protected).error is None:
            self.skipTest("this machine protects no names, so the code can write them itself")
        for path in (".git/hooks/x", "door/hooks/x", ".git/HEAD", "AGENTS.md", ".claude/settings.json"):
            self.check_error(session, f"tools.append({path!r}, 'x')", "PathRefused", "refused")
        self.assertEqual(os.listdir(f"{work}/.git/hooks"), [])
        self.check(session, "print(tools.append('src/x', 'y'))", "y\n")

    def test_the_files_are_those_of_the_session_that_calls(self):
        client = self.client()
        client.tools(append, owner="team-files")
        first, second = (self.session(client, owner="team-files") for _ in range(2))
        for session, text in ((first, "1"), (second, "2")):
            self.check(session, f"print(tools.append('own', {text!r}))", f"{text}\n")
        self.assertEqual(first.files.get("own"), b"1")
        child = {"parent": first.id, "id": f"{first.id}-child"}
        client._transport.call(Call("POST", "/v1/sessions", json.dumps(child).encode()))
        of_child = client.attach(child["id"])
        self.addCleanup(of_child.close)
        self.check(of_child, "print(tools.append('own', '+'))", "1+\n")

    def test_a_hidden_file_is_not_copied(self):
        work = tempfile.mkdtemp(dir=self.base)
        Path(work, "secret").write_text("hidden")
        session = self.session(workspace=work, policy={"hidden": [f"{work}/secret"]})
        session.tools(windlass.tool(_read, name="read"))
        self.check_error(session, "tools.read('secret')", "PathRefused", "hides")


def _read(file: Annotated[Path, File()]) -> str:
    return file.read_text()


class AsyncFiles(FileCase, unittest.IsolatedAsyncioTestCase):
    async def test_async_functions_get_files_too(self):
        async with AsyncWindlass() as client:
            async with await client.session(interpreter=python()) as session:

                async def shout(file: Annotated[Path, File(write_back=True)]) -> str:
                    await asyncio.sleep(0)
                    file.write_text(file.read_text().upper())
                    return file.name

                await session.tools(shout)
                await session.files.put("a", "loud")
                turn = await session.run("print(tools.shout('a'), open('a').read())")
                self.assertEqual(turn.output, "a LOUD\n")
                code = (
                    "import asyncio\n"
                    "for n in range(20): open(f'f{n}', 'w').write(f'x{n}')\n"
                    "await asyncio.gather(*[tools.shout(f'f{n}') for n in range(20)])\n"
                    "print([open(f'f{n}').read() for n in range(20)] == [f'X{n}' for n in range(20)])"
                )
                self.assertEqual((await session.run(code)).output, "True\n")
        self.assert_no_copies()


if __name__ == "__main__":
    unittest.main()
