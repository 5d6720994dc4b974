"""File providers and the other host providers, without a node."""

import asyncio
import base64
import json
import os
import shutil
import tempfile
import unittest

from windlass import DirectoryFiles, MemoryFiles
from windlass._providers import HostProviders
from windlass._tool import encode_error


def text(data):
    return base64.b64encode(data).decode()


class Calls:
    """Calls the tools of providers as a tool host does."""

    def __init__(self, **providers):
        self.tools = {one.name: one for one in HostProviders(**providers).tools()}

    def __call__(self, name, /, **arguments):
        one = self.tools[name]
        try:
            value = one.call(json.dumps(arguments).encode())
            value = asyncio.run(value) if one.is_async else value
            return [entry["name"] for entry in value["entries"]] if name == "files.list" else value
        except Exception as error:
            return json.loads(encode_error(error))["message"].partition(":")[0]


STEPS = (
    ("write", dict(path="a/b", offset=0, data=text(b"hi"), create=True), "ENOENT"),
    ("mkdir", dict(path="a"), None),
    ("mkdir", dict(path="a"), "EEXIST"),
    ("write", dict(path="a/b", offset=0, data=text(b"hi"), create=True), None),
    ("write", dict(path="a/b", offset=4, data=text(b"ho")), None),
    ("read", dict(path="a/b", offset=1, length=100), {"data": text(b"i\0\0ho")}),
    ("write", dict(path="a/b", offset=1, data="", truncate=True), None),
    ("read", dict(path="a/b", offset=0, length=100), {"data": text(b"h")}),
    ("read", dict(path="a", offset=0, length=1), "EISDIR"),
    ("list", dict(path=""), ["a"]),
    ("remove", dict(path="a", directory=True), "ENOTEMPTY"),
    ("rename", dict(path="a", to="z"), None),
    ("list", dict(path="z"), ["b"]),
    ("stat", dict(path="a"), "ENOENT"),
    ("stat", dict(path="z/b/c"), "ENOTDIR"),
    ("stat", dict(path="../x"), "EACCES"),
    ("stat", dict(path="/etc"), "EACCES"),
    ("remove", dict(path="z/b"), None),
    ("remove", dict(path="z", directory=True), None),
    ("list", dict(path=""), []),
)


class AsyncFiles:
    """A provider of one's own, with async methods."""

    def __init__(self):
        self._files = MemoryFiles()

    def __getattr__(self, name):
        method = getattr(self._files, name)

        async def later(*arguments, **options):
            await asyncio.sleep(0)
            return method(*arguments, **options)

        return later


class Files(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)

    def test_all_providers_behave_like_files(self):
        for files in (MemoryFiles(), DirectoryFiles(self.directory), AsyncFiles()):
            call = Calls(files=files)
            for name, arguments, expected in STEPS:
                found = call("files." + name, **arguments)
                self.assertEqual(found, expected, (type(files), name, arguments))

    def test_no_path_leaves_the_directory(self):
        os.symlink("/etc", os.path.join(self.directory, "out"))
        os.symlink("/etc/passwd", os.path.join(self.directory, "link"))
        os.mkfifo(os.path.join(self.directory, "pipe"))
        with open(os.path.join(self.directory, "plain"), "w") as file:
            file.write("x")
        call = Calls(files=DirectoryFiles(self.directory))
        for name, arguments, expected in (
            ("list", dict(path=""), ["plain"]),
            ("stat", dict(path="out/passwd"), "ENOTDIR"),
            ("list", dict(path="out"), "ENOTDIR"),
            ("stat", dict(path="link"), "EACCES"),
            ("read", dict(path="link", offset=0, length=9), "EACCES"),
            ("write", dict(path="link", offset=0, data="", create=True), "EACCES"),
            ("read", dict(path="pipe", offset=0, length=9), "EACCES"),
            ("write", dict(path="pipe", offset=0, data="eA=="), "EACCES"),
        ):
            self.assertEqual(call("files." + name, **arguments), expected, (name, arguments))

    def test_an_error_does_not_name_this_machines_path(self):
        tools = HostProviders(files=DirectoryFiles(self.directory)).tools()
        stat = next(one for one in tools if one.name == "files.stat")
        with self.assertRaises(OSError) as caught:
            stat.call(b'{"path": "missing"}')
        self.assertNotIn(self.directory, str(caught.exception))

    def test_a_read_only_directory_stays_as_it_is(self):
        call = Calls(files=DirectoryFiles(self.directory, read_only=True))
        self.assertEqual(call("files.mkdir", path="a"), "EROFS")
        self.assertEqual(os.listdir(self.directory), [])

    def test_memory_has_a_limit(self):
        call = Calls(files=MemoryFiles({"d/a": b"12"}, bytes_max=4))
        self.assertEqual(call("files.write", path="d/a", offset=0, data=text(b"12345")), "ENOSPC")
        self.assertEqual(call("files.write", path="d/a", offset=0, data=text(b"1234")), None)


class Others(unittest.TestCase):
    def test_requests_lookups_and_programs_carry_bytes(self):
        call = Calls(
            http=lambda method, url, headers, body: {"status": 200, "headers": {"x": method}, "body": body},
            lookup=lambda name: ["addr of " + name],
            run=lambda args, *, shell, cwd, env, input: {"returncode": 3, "stdout": input},
        )
        self.assertEqual(
            call("host.http", method="GET", url="u", headers=[["a", "b"]], body=text(b"\xff")),
            {"status": 200, "headers": [["x", "GET"]], "body": text(b"\xff")},
        )
        self.assertEqual(call("host.lookup", name="n"), {"addresses": ["addr of n"]})
        self.assertEqual(
            call("host.run", args=["ls"], input=text(b"in")),
            {"returncode": 3, "stdout": text(b"in"), "stderr": ""},
        )

    def test_only_the_pyodide_worker_takes_providers(self):
        providers = HostProviders(files=MemoryFiles())
        with self.assertRaisesRegex(ValueError, "files= needs worker='pyodide'"):
            providers.check(None)
        providers.check("pyodide")
        self.assertEqual(providers.environment({"A": "1"}), {"A": "1", "WINDLASS_FILES": "host"})
        self.assertIsNone(HostProviders().environment(None))


if __name__ == "__main__":
    unittest.main()
