"""The scratch environment after a worker that was lost while it made one."""

import builtins
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

from windlass_worker import scratch  # noqa: E402


class Lost(BaseException):
    """The worker ends here."""


class ScratchEnvironment(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="wl-scratch-")
        self.addCleanup(directory.cleanup)
        self.root = directory.name

    def enter(self):
        with (
            mock.patch.dict(os.environ),
            mock.patch.object(sys, "path", list(sys.path)),
            mock.patch.object(sys, "executable", sys.executable),
        ):
            scratch.enter(self.root)

    def lose_at_write(self, number):
        """Enters, and ends in the middle of a write. Returns whether there was such a write."""
        writes = []

        def write(path, text):
            writes.append(path)
            lost = len(writes) == number
            with builtins.open(path, "w", encoding="utf-8") as file:
                file.write(text[: len(text) // 2] if lost else text)
            if lost:
                raise Lost

        with mock.patch.object(scratch, "_write", write):
            try:
                self.enter()
            except Lost:
                return True
        return False

    def test_a_worker_that_is_lost_in_any_write_leaves_nothing_torn(self):
        config = Path(self.root, "pyvenv.cfg")
        number = 1
        while self.lose_at_write(number):
            self.assertFalse(config.exists(), f"write {number}")
            number += 1
        # Two scripts, the path file and the configuration; the last attempt was lost in none.
        self.assertEqual(number - 1, 4)
        lines = dict(line.split(" = ") for line in config.read_text().splitlines())
        self.assertEqual(list(lines), ["home", "include-system-site-packages", "version"])
        self.assertEqual(lines["version"], "%d.%d.%d" % sys.version_info[:3])
        self.assertEqual([each.name for each in config.parent.glob("pyvenv*")], ["pyvenv.cfg"])
        python = str(Path(self.root, "bin/python"))
        code = "import sys; print(sys.prefix)"
        ran = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(ran.stdout.strip(), self.root)

    def test_an_environment_that_is_whole_is_used_as_it_is(self):
        self.enter()
        with mock.patch.object(scratch, "_make", side_effect=AssertionError):
            self.enter()


if __name__ == "__main__":
    unittest.main()
