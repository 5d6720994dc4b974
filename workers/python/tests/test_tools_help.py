"""What the code, and the model that wrote it, can learn about a tool."""

import unittest

from host import WithHost

SEARCH = {
    "properties": {
        "limit": {"type": "integer", "default": 10, "description": "How many.\nAt most 100."},
        "query": {"type": "string", "description": "What to look for."},
        "kind": {"enum": ["paper", "book", None]},
        "since": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"anyOf": [{"$ref": "#/$defs/place"}, {"type": "boolean"}], "default": {"a": [1]}},
        "class": {"type": "number"},
        "any": {},
    },
    "required": ["query"],
    "$defs": {"place": {"type": "object"}},
}
SIGNATURE = (
    "(query: str, limit: int = 10, kind: Literal['paper', 'book', None] = None, since: str | None = None, "
    "tags: list[str] = None, where: dict | bool = {'a': [1]}, any=None, **others)"
)
HELP = """\
search%s
    Find things.
    
    In the library.
    
    Parameters:
        query (str): What to look for.
        limit (int): How many.
            At most 100.
        kind (Literal['paper', 'book', None])
        since (str | None)
        tags (list[str])
        where (dict | bool)
        class (float)
        any
""" % SIGNATURE


class Help(WithHost):
    def setUp(self):
        super().setUp()
        self.host.offer("search", lambda **a: a, "  Find things.\n\nIn the library.\n", **SEARCH)
        self.host.offer("files.read", lambda path: path, "Read a file.", properties={"path": {"type": "string"}})

    def test_help_shows_signature_and_description(self):
        told = self.run_code("help(tools.search)")
        self.assertIn("Help on function search", told.printed)
        shown = "\n".join(line.rstrip() for line in told.printed.split("\n\n", 1)[1].splitlines())
        expected = "\n".join(line.rstrip() for line in HELP.splitlines())
        self.assertEqual("".join(shown.split()), "".join(expected.split()))
        self.assertIn("\n        limit (int): How many.\n            At most 100.\n", shown)

    def test_the_signature_is_there_whenever_inspect_is_imported(self):
        self.check("search = tools.search\nimport inspect\nprint(inspect.signature(search))", "")
        for use in ("tools.search", "tools.search.blocking", "tools(deadline=3).search", "search"):
            self.assertEqual(self.run_code("print(inspect.signature(%s))" % use).printed, SIGNATURE + "\n")
        self.check("inspect.isfunction(search), search.__name__, search.__qualname__, search.__module__",
                   "(True, 'search', 'search', 'tools')")
        self.check("tools.files.read.__name__, tools.files.read.__qualname__, tools.files.read.__module__",
                   "('read', 'files.read', 'tools.files')")
        self.check("search('q', any=1, extra=2)", "{'query': 'q', 'any': 1, 'extra': 2}")

    def test_help_on_tools_and_groups(self):
        told = self.run_code("help(tools)")
        for part in ("await tools.name(", "search  Find things.", "files.read  Read a file."):
            self.assertIn(part, told.printed)
        self.assertIn("files.read  Read a file.", self.run_code("help(tools.files)").printed)

    def test_dir_and_completion(self):
        self.check("[n for n in dir(tools) if n[:4] != 'Tool']", "['echo', 'fail', 'files', 'search', 'wait']")
        self.check(
            "import rlcompleter\nc = rlcompleter.Completer({'tools': tools})\n"
            "[c.complete(t, 0) for t in ('tools.se', 'tools.fil', 'tools.files.r', 'tools.zz')]",
            "['tools.search(', 'tools.files', 'tools.files.read(', None]",
        )

    def test_a_schema_cannot_run_anything(self):
        evil = "x: __import__('os').system('echo evil')): pass\ndef f(y"
        self.host.offer("evil", lambda **a: a, evil, properties={evil: {"type": evil, "default": evil},
                        "ok": {"enum": [evil], "description": evil}}, required=[evil])
        told = self.run_code("import inspect\nhelp(tools.evil); print(inspect.signature(tools.evil))\n"
                             "tools.evil(**{%r: 1})" % evil)
        self.assertEqual(told.result, "{%r: 1}\n" % evil)
        self.assertNotIn("\nevil\n", told.printed)
        self.assertIn("**others", told.printed)


if __name__ == "__main__":
    unittest.main()
