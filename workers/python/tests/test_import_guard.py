"""The guard keeps a zygote from importing modules that sessions can write to."""

import importlib
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from windlass_worker.import_guard import ImportGuard


class ImportGuardTest(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = os.path.realpath(place.name)
        sys.path.insert(0, self.place)
        self.addCleanup(sys.path.remove, self.place)
        importlib.invalidate_caches()

    def write(self, name, text):
        path = os.path.join(self.place, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def test_what_sessions_can_write_is_refused_before_it_runs(self):
        self.write("planted_module.py", "raise SystemExit('it ran')")
        self.write("planted_package/__init__.py", "raise SystemExit('it ran')")
        for name in ("planted_module", "planted_package"):
            with ImportGuard([self.place]), self.assertRaisesRegex(ImportError, "sessions can write"):
                importlib.import_module(name)
            self.assertNotIn(name, sys.modules)

    def test_a_link_is_followed(self):
        self.write("inner/linked.py", "raise SystemExit('it ran')")
        os.symlink("inner/linked.py", os.path.join(self.place, "linked.py"))
        with ImportGuard([os.path.join(self.place, "inner")]), self.assertRaises(ImportError):
            importlib.import_module("linked")

    def test_a_file_with_a_second_name_is_refused(self):
        self.write("two_names.py", "raise SystemExit('it ran')")
        os.link(os.path.join(self.place, "two_names.py"), os.path.join(self.place, "another"))
        with ImportGuard([]), self.assertRaisesRegex(ImportError, "second hard link"):
            importlib.import_module("two_names")

    def test_everything_else_is_imported_as_ever(self):
        self.write("guarded_elsewhere.py", "here = True")
        before = list(sys.meta_path)
        with ImportGuard(["/nowhere", self.place + "-other"]):
            self.assertTrue(importlib.import_module("guarded_elsewhere").here)
            importlib.import_module("wave")
        self.assertEqual(sys.meta_path, before)
        del sys.modules["guarded_elsewhere"]

    def test_where_the_roots_are_unknown_what_the_user_can_change_is_refused(self):
        self.write("of_the_user.py", "raise SystemExit('it ran')")
        with ImportGuard(None), self.assertRaises(ImportError):
            importlib.import_module("of_the_user")


if __name__ == "__main__":
    unittest.main()
