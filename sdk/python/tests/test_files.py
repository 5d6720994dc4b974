"""Files in and out of the workspace, against a real node."""

import io
import os
import unittest

from node import NodeCase, in_thread, kill_node

import windlass
from windlass import FileChange, Write


class Files(NodeCase):
    def test_a_file_goes_in_and_comes_out(self):
        session = self.session()
        info = session.files.put("data/in.txt", "one\ntwo\n")
        self.assertEqual((info.path, info.bytes), ("data/in.txt", 8))
        self.assertEqual(session.run("open('data/in.txt').read()").result, "'one\\ntwo\\n'")
        session.run("open('out.bin', 'wb').write(bytes(range(256)))").raise_for_error()
        content = session.files.get("out.bin")
        self.assertEqual(content, bytes(range(256)))
        self.assertTrue(content.etag)
        self.assertEqual(session.files.get("out.bin", start=10, stop=13), bytes((10, 11, 12)))
        self.assertEqual(session.files.get("out.bin", start=254), bytes((254, 255)))

    def test_a_name_with_odd_characters_is_the_same_name(self):
        session = self.session()
        name = "a b/ü?#%25&.txt"
        session.files.put(name, b"x")
        self.assertEqual(session.files.get(name), b"x")
        self.assertEqual([e.path for e in session.files.list("a b")], [name])

    def test_large_files_are_streamed_both_ways(self):
        session = self.session()
        data = os.urandom(1024) * 3000
        info = session.files.put("large", io.BytesIO(data))
        self.assertEqual(info.bytes, len(data))
        out = io.BytesIO()
        self.assertEqual(session.files.get_into("large", out).etag, info.etag)
        self.assertEqual(out.getvalue(), data)

    def test_a_directory_is_listed(self):
        session = self.session()
        session.files.put("a.txt", b"12345")
        session.files.put("d/b.txt", b"")
        top = {entry.path: entry for entry in session.files.list()}
        self.assertEqual((top["a.txt"].kind, top["a.txt"].bytes), ("file", 5))
        self.assertEqual(top["d"].kind, "directory")
        listed = session.files.list(recursive=True)
        self.assertIn("d/b.txt", [entry.path for entry in listed])
        self.assertFalse(listed.more)

    def test_what_is_not_there_and_what_leads_out_is_refused(self):
        session = self.session()
        with self.assertRaises(windlass.FileMissing):
            session.files.get("nothing")
        session.run("import os; os.symlink('/etc', 'away')").raise_for_error()
        with self.assertRaises(windlass.WindlassError):
            session.files.get("away/passwd")
        with self.assertRaises(windlass.WindlassError):
            session.files.get("../../etc/passwd")

    def test_a_write_over_what_was_not_seen_is_a_conflict(self):
        session = self.session()
        first = session.files.put("a", b"1", new=True)
        with self.assertRaises(windlass.FileConflict):
            session.files.put("a", b"2", new=True)
        second = session.files.put("a", b"2", etag=first.etag)
        with self.assertRaises(windlass.FileConflict):
            session.files.put("a", b"3", etag=first.etag)
        with self.assertRaises(windlass.FileConflict):
            session.files.put("a", io.BytesIO(bytes(3_000_000)), etag=first.etag)
        with self.assertRaises(windlass.FileConflict):
            session.files.delete("a", etag=first.etag)
        self.assertEqual(session.files.get("a"), b"2")
        session.files.delete("a", etag=second.etag)
        self.assertEqual(len(session.files.list()), 0)

    def test_a_write_back_is_done_whole_or_not_at_all(self):
        session = self.session()
        kept = session.files.put("kept", b"old")
        gone = session.files.put("gone", b"old")
        etags = {"kept": kept.etag, "gone": gone.etag, "fresh": None}
        session.run("open('kept', 'w').write('changed by the code')").raise_for_error()
        changes = {"kept": b"new", "gone": None, "fresh": "text", "big": bytes(500_000)}
        with self.assertRaises(windlass.FileConflict) as caught:
            session.files.write_back(changes, etags=etags)
        self.assertIn("kept", caught.exception.message)
        self.assertEqual(session.files.get("gone"), b"old")
        self.assertNotIn("fresh", [entry.path for entry in session.files.list()])
        etags["kept"] = session.files.get("kept").etag
        session.files.write_back(changes, etags=etags)
        self.assertEqual(session.files.get("kept"), b"new")
        self.assertEqual(session.files.get("fresh"), b"text")
        self.assertEqual(session.files.get("big"), bytes(500_000))
        with self.assertRaises(windlass.FileMissing):
            session.files.get("gone")
        with self.assertRaises(windlass.FileConflict):
            session.files.write_back({"fresh": Write(b"again", new=True)})

    def test_changes_are_watched_from_the_moment_it_is_asked(self):
        session = self.session()
        session.files.put("old", b"1")
        with session.files.watch() as changes:
            session.run("open('made', 'w').close(); open('old', 'a').write('2')")
            session.run("import os; os.remove('old')").raise_for_error()
            seen = set()
            for change in changes:
                seen.add((change.kind, change.path))
                if change == FileChange("removed", "old"):
                    break
        self.assertIn(("made", "made"), seen)
        self.assertIn(("changed", "old"), seen)

    def test_a_watch_says_that_it_missed_changes_when_the_node_was_killed(self):
        session = self.session()
        with session.files.watch() as changes:
            waiting = in_thread(lambda: next(changes))
            kill_node()
            self.assertEqual(waiting().kind, "overflow")
            session.files.put("later", b"1")
            self.assertEqual(next(changes).path, "later")

    def test_an_ended_sessions_files_can_be_read(self):
        workspace = f"{self.base}/kept"
        os.mkdir(workspace)
        session = self.session(workspace=workspace)
        session.run("open('left', 'w').write('here')")
        session.close()
        self.assertEqual(session.files.get("left"), b"here")


if __name__ == "__main__":
    unittest.main()
