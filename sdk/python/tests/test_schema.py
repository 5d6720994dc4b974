"""Schemas of type hints and values back, without a node."""

import dataclasses
import datetime
import enum
import unittest
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, Union

import node  # noqa: F401  The package's place.

from windlass._schema import ArgumentError
from windlass._tool import encode_result, tool


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass
class Tree:
    name: str
    children: list["Tree"] = dataclasses.field(default_factory=list)


class Wish(TypedDict):
    name: str


class Full(Wish, total=False):
    count: int


UserId = NewType("UserId", int)


class Schemas(unittest.TestCase):
    def check(self, hint, schema, good, bad):
        """`good` pairs JSON with what the function gets; `bad` pairs JSON with the message."""

        def function(x):
            return x

        function.__annotations__["x"] = hint
        made = tool(function)
        self.assertEqual(made.input_schema["properties"]["x"], schema)
        for given, expected in good:
            got = made.call(encode_result({"x": given}))
            self.assertEqual((got, type(got)), (expected, type(expected)))
        for given, message in bad:
            with self.assertRaises(ArgumentError) as caught:
                made.call(encode_result({"x": given}))
            self.assertEqual(str(caught.exception), message)

    def test_each_hint_has_its_schema_and_its_way_back(self):
        text, integer = {"type": "string"}, {"type": "integer"}
        self.check(str, text, [("a", "a")], [(1, "x must be text, not 1")])
        self.check(int, integer, [(1, 1), (2.0, 2)], [(True, "x must be an integer, not True")])
        self.check(float, {"type": "number"}, [(1, 1.0)], [("1", "x must be a number, not '1'")])
        self.check(bool, {"type": "boolean"}, [(True, True)], [(1, "x must be true or false, not 1")])
        self.check(None, {"type": "null"}, [(None, None)], [(0, "x must be null, not 0")])
        self.check(Any, {}, [({"a": [1]}, {"a": [1]})], [])
        self.check(UserId, integer, [(7, 7)], [])
        self.check(
            list[int],
            {"type": "array", "items": integer},
            [([1, 2], [1, 2])],
            [([1, "b"], "x[1] must be an integer, not 'b'"), ("ab", "x must be a list, not 'ab'")],
        )
        self.check(
            tuple[int, str],
            {
                "type": "array",
                "prefixItems": [integer, text],
                "items": False,
                "minItems": 2,
            },
            [([1, "a"], (1, "a"))],
            [([1], "x must be a list of 2, not [1]")],
        )
        self.check(set[str], {"type": "array", "items": text}, [(["a", "a"], {"a"})], [])
        self.check(
            dict[str, float],
            {"type": "object", "additionalProperties": {"type": "number"}},
            [({"a": 1}, {"a": 1.0})],
            [({"a": "b"}, "x.a must be a number, not 'b'")],
        )
        self.check(
            Optional[int],
            {"anyOf": [integer, {"type": "null"}]},
            [(None, None), (3, 3)],
            [("a", "x must be an integer, not 'a'; or x must be null, not 'a'")],
        )
        self.check(Union[float, int, str], _any("number", "integer", "string"), [(1, 1), ("a", "a")], [])
        self.check(int | str, _any("integer", "string"), [("1", "1")], [])
        self.check(
            Literal["a", 2],
            {"enum": ["a", 2]},
            [("a", "a"), (2, 2)],
            [("b", "x must be one of 'a', 2, not 'b'"), (2.0, "x must be one of 'a', 2, not 2.0")],
        )
        self.check(Level, {"enum": [1, 2]}, [(2, Level.HIGH)], [(3, "x must be one of 1, 2, not 3")])
        self.check(Annotated[str, "why"], {"type": "string", "description": "why"}, [("a", "a")], [])
        self.check(
            datetime.date,
            {"type": "string", "format": "date"},
            [("2026-02-03", datetime.date(2026, 2, 3))],
            [("then", "x must be a date in ISO 8601, not 'then'")],
        )

    def test_objects_are_checked_field_by_field(self):
        self.check(
            Full,
            {
                "type": "object",
                "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["name"],
                "additionalProperties": False,
            },
            [({"name": "a"}, {"name": "a"}), ({"name": "a", "count": 2}, {"name": "a", "count": 2})],
            [({}, "x argument name missing"), ({"name": 1}, "x.name must be text, not 1")],
        )

    def test_a_type_that_contains_itself_is_defined_once(self):
        made = tool(lambda tree: tree, name="grow")
        self.assertEqual(made.input_schema["properties"], {"tree": {}})

        def grow(tree: Tree) -> str:
            return tree.children[0].children[0].name

        made = tool(grow)
        self.assertEqual(made.input_schema["properties"]["tree"], {"$ref": "#/$defs/Tree"})
        self.assertIn("Tree", made.input_schema["$defs"])
        leaf = {"name": "leaf"}
        body = encode_result({"tree": {"name": "a", "children": [{"name": "b", "children": [leaf]}]}})
        self.assertEqual(made.call(body), "leaf")

    def test_defaults_descriptions_and_unknown_arguments(self):
        def find(words: str, /, limit: int = 10, *, flag: str = None, other=object()):  # type: ignore
            """Finds things.

            By words.
            """
            return (words, limit, flag)

        made = tool(find)
        self.assertEqual(made.description, "Finds things.\n\nBy words.")
        self.assertEqual(made.input_schema["required"], ["words"])
        self.assertEqual(made.input_schema["properties"]["limit"], {"type": "integer", "default": 10})
        self.assertEqual(made.call(b'{"words":"a","flag":null}'), ("a", 10, None))
        for body, message in [
            (b"{}", "argument words missing"),
            (b'{"words":"a","speed":1}', "argument speed unknown; there are: words, limit, flag, other"),
            (b"[]", "must be an object, not []"),
        ]:
            with self.assertRaises(ArgumentError) as caught:
                made.call(body)
            self.assertEqual(str(caught.exception), message)

    def test_any_keyword_can_be_taken(self):
        made = tool(lambda a, **rest: (a, rest), name="any")
        self.assertTrue(made.input_schema["additionalProperties"])
        self.assertEqual(made.call(b'{"a":1,"b":2}'), (1, {"b": 2}))

    def test_methods_and_callable_objects_are_tools(self):
        class Shop:
            def sell(self, item: str) -> str:
                return f"sold {item}"

            async def __call__(self, item: str) -> str:
                return item

        self.assertEqual(tool(Shop().sell).call(b'{"item":"hat"}'), "sold hat")
        made = tool(Shop(), name="shop")
        self.assertTrue(made.is_async)

    def test_what_json_cannot_say_is_refused_when_it_is_offered(self):
        def odd(x: complex) -> None: ...

        def keys(x: dict[int, str]) -> None: ...

        def many(*x: int) -> None: ...

        for function, message in [
            (odd, "tool odd, argument x: no JSON schema says complex"),
            (keys, "tool keys, argument x: JSON's objects have text for keys"),
            (many, "tool many takes *x, but arguments have names: take a list"),
        ]:
            with self.assertRaisesRegex(TypeError, message.replace("*", r"\*")):
                tool(function)
        with self.assertRaisesRegex(ValueError, "is not a valid tool name"):
            tool(lambda: 1)


def _any(*kinds):
    return {"anyOf": [{"type": kind} for kind in kinds]}


if __name__ == "__main__":
    unittest.main()
