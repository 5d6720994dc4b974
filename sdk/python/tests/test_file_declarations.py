"""Where a function may declare a file, without a node. A declaration that is not seen must be refused:
the function would get the code's path as it is."""

import dataclasses
import functools
import unittest
from pathlib import Path
from typing import (
    Annotated, Any, Generic, Literal, Mapping, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union,
)

import node  # noqa: F401  The package's place.

import windlass
from windlass import File
from windlass._file_arguments import COPY, mentions_file
from windlass._tool import encode_result, tool

try:
    import pydantic
except ImportError:
    pydantic = None  # type: ignore[assignment]

T = TypeVar("T")
Bound = TypeVar("Bound", bound=Annotated[Path, File()])
Chosen = TypeVar("Chosen", Annotated[Path, File()], Annotated[str, File()])
Named = NewType("Named", Annotated[Path, File()])  # type: ignore[valid-newtype]


class Marked(File):
    pass


@dataclasses.dataclass
class Held:
    file: Annotated[Path, File()]


@dataclasses.dataclass
class Plain:
    file: str


@dataclasses.dataclass
class PlainOfKind:
    kind: Literal["plain"]
    file: str


@dataclasses.dataclass
class HeldOfKind:
    kind: Literal["held"]
    file: Annotated[Path, File()]


@dataclasses.dataclass
class Tree:
    file: Annotated[Path, File()]
    below: "Optional[list[Tree]]" = None


@dataclasses.dataclass
class PlainTree:
    file: str
    below: "Optional[list[PlainTree]]" = None


class Typed(TypedDict, total=False):
    file: Annotated[Path, File()]


class Tupled(NamedTuple):
    file: Annotated[Path, File()]


class Unannounced:
    """Like a class of a library for classes, which is no dataclass."""

    file: Annotated[Path, File()]


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


@dataclasses.dataclass
class FileBox(Box[Annotated[Path, File()]]):
    pass


@dataclasses.dataclass
class LaterFileBox(FileBox):
    more: int = 0


@dataclasses.dataclass
class NumberBox(Box[int]):
    file: Annotated[Path, File()]


@dataclasses.dataclass
class FileForDefault:
    file: Path = File()  # type: ignore[assignment]


@dataclasses.dataclass
class FileForFactory:
    file: Path = dataclasses.field(default_factory=File)  # type: ignore[assignment]


@dataclasses.dataclass
class FileInMetadata:
    file: Path = dataclasses.field(default=Path(), metadata={"windlass": File()})


class Validated:
    """Like a class of a validation library that does not know `File`."""

    file: Annotated[Path, File()]
    deep: "dict[str, Any]"

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": {"file": {"type": "string"}}}

    @classmethod
    def model_validate(cls, value: Any) -> Any:
        return value


class ValidatedDeep(Validated):
    file: str  # type: ignore[assignment]
    deep: dict[str, Held]


def taking(hint: Any, **named: Any) -> windlass.Tool:
    def function(x):
        return x

    function.__annotations__["x"] = hint
    return tool(function, **named)


class FileDeclarations(unittest.TestCase):
    def check(self, made: windlass.Tool, given: Any, expected: Any) -> None:
        """The function gets `expected`, in which each file's path begins with `copy:`."""
        self.assertTrue(made.takes_files)
        token = COPY.set(lambda path, mark: Path(f"copy:{path}"))
        try:
            self.assertEqual(made.bind(encode_result(given))(), expected)
        finally:
            COPY.reset(token)

    def check_refused(self, hint: Any, words: str = "File") -> None:
        with self.assertRaisesRegex(TypeError, words):
            taking(hint)

    def test_a_file_is_copied_wherever_a_declaration_is_accepted(self):
        copy = Path("copy:a")
        one = Annotated[Path, File]
        for hint, given, expected in [
            (one, "a", copy),
            (Annotated[str, "words", Marked], "a", "copy:a"),
            (Annotated[Annotated[Path, File()], "words"], "a", copy),
            (Optional[one], "a", copy),
            (Union[int, one, None], "a", copy),
            (Union[one, list[one]], ["a"], [copy]),
            (Union[Literal["-"], one], "a", copy),
            (list[one], ["a"], [copy]),
            (list["Annotated[Path, File()]"], ["a"], [copy]),
            (tuple[int, one], [1, "a"], (1, copy)),
            (tuple[one, ...], ["a"], (copy,)),
            (dict[str, one], {"k": "a"}, {"k": copy}),
            (Mapping[str, list[one]], {"k": ["a"]}, {"k": [copy]}),
            (list[T][one], ["a"], [copy]),  # type: ignore[misc]
            (Named, "a", copy),
            (Typed, {"file": "a"}, {"file": copy}),
            (Held, {"file": "a"}, Held(copy)),
            (NumberBox, {"item": 1, "file": "a"}, NumberBox(1, copy)),
            (Union[Held, int], {"file": "a"}, Held(copy)),
            (Union[HeldOfKind, PlainOfKind], {"kind": "held", "file": "a"}, HeldOfKind("held", copy)),
            (Tree, {"file": "a", "below": [{"file": "a"}]}, Tree(copy, [Tree(copy)])),
        ]:
            with self.subTest(hint):
                self.check(taking(hint), {"x": given}, expected)

    def test_a_declaration_that_no_conversion_sees_is_refused(self):
        for hint in [
            File,
            Marked,
            File(),
            Bound,
            list[Bound],  # type: ignore[valid-type]
            Chosen,
            Tupled,
            Unannounced,
            Box[Annotated[Path, File()]],
            FileBox,
            LaterFileBox,
            FileForDefault,
            FileForFactory,
            FileInMetadata,
            Validated,
            ValidatedDeep,
            dict[Annotated[str, File()], int],
            Annotated[Optional[Path], File()],
            Annotated[list[Path], File()],
        ]:
            with self.subTest(hint):
                self.check_refused(hint, "")
        for function in (
            lambda x=File(): x,
            lambda x=File: x,
        ):
            with self.assertRaisesRegex(TypeError, "place of the default of x"):
                tool(function, name="odd")

        def rest(**files: Annotated[Path, File()]) -> None: ...

        def plain_rest(**words: str) -> None: ...

        with self.assertRaisesRegex(TypeError, r"as \*\*files, where none is copied: take a dict"):
            tool(rest)
        self.assertFalse(tool(plain_rest).takes_files)

    def test_a_union_leaves_no_choice_between_a_file_and_a_text(self):
        one = Annotated[Path, File()]
        for hint in [
            Union[one, str],
            Union[str, one],
            Union[Path, one],
            Union[one, Any],
            Union[list[one], Any],
            Union[one, T],  # type: ignore[valid-type]
            Union[list[str], list[one]],
            Union[list[one], tuple[str, int]],
            Union[tuple[one, int], tuple[str, int]],
            Union[dict[str, one], dict[str, str]],
            Union[Plain, Held],
            Union[Held, Plain],
            Union[Held, dict[str, str]],
            Union[Tree, PlainTree],
            list[Union[int, Union[Held, Optional[Plain]]]],
        ]:
            with self.subTest(hint):
                self.check_refused(hint, "could choose whether a text is a file")
        for hint in [
            Union[tuple[one, int], tuple[str, int, int]],
            Union[tuple[one, int], tuple[str, str]],
            Union[Held, PlainOfKind],
            Union[list[one], dict[str, str]],
            Union[list[one], str],
        ]:
            with self.subTest(hint):
                self.assertTrue(taking(hint).takes_files)

    def test_the_functions_behind_other_callables_declare_files_too(self):
        def read(file: Annotated[Path, File()], text: str) -> tuple[Path, str]:
            """Reads."""
            return file, text

        def unannotated(*args: Any, **named: Any) -> Any:
            return read(*args, **named)

        functools.update_wrapper(unannotated, read, assigned=())

        class Read:
            def __init__(self, file: "Annotated[Path, File()]", text: str) -> None:
                self.got = (file, text)

            def __eq__(self, other: object) -> bool:
                return self.got == other

        given = {"file": "a", "text": "b"}
        for function in [functools.partial(read, text="c"), unannotated, functools.lru_cache(read), Read]:
            with self.subTest(function):
                self.check(tool(function, name="read"), given, (Path("copy:a"), "b"))
        self.assertEqual(tool(functools.partial(read, text="c"), name="r").description, "Reads.")

        async def later(file: Annotated[Path, File()]) -> None: ...

        self.assertTrue(tool(functools.partial(later), name="later").is_async)

    def test_a_hint_that_is_only_looked_at_is_looked_at_to_its_end(self):
        for hint in [Tree, Typed, Tupled, FileBox, list[Held], Bound, Chosen, "Annotated[Path, w.File()]"]:
            self.assertTrue(mentions_file(hint), hint)
        for hint in [PlainTree, Box[int], T, Literal["Annotated[Path, File()]"], Any, None, "Files"]:
            self.assertFalse(mentions_file(hint), hint)

    def test_a_schema_that_is_not_made_from_hints_declares_no_file(self):
        class Raw:
            """Like a class of a validation library, with a schema of its own."""

            schema: dict[str, Any] = {}

            @classmethod
            def model_json_schema(cls) -> dict[str, Any]:
                return cls.schema

            @classmethod
            def model_validate(cls, value: Any) -> Any:
                return value

        file = {"type": "string", "format": "windlass-file"}
        write_back = {"type": "string", "format": "windlass-file-write-back"}
        for schema in [
            {"properties": {"at": file}},
            {"properties": {"at": {"$ref": "#/$defs/a~1b"}}, "$defs": {"a/b": write_back}},
            {"anyOf": [{"type": "null"}, {"type": "array", "prefixItems": [write_back]}]},
        ]:
            Raw.schema = schema
            self.check_refused(Raw, "in the schema of .*Raw")
            with self.assertRaisesRegex(TypeError, "the schema of tool read declares a file"):
                windlass.Tool("read", "", schema, print, is_async=False)
        Raw.schema = {"properties": {"format": {"$ref": "#anchor"}}}
        self.assertFalse(taking(Raw).takes_files)

    def test_the_hook_of_pydantic_refuses(self):
        for mark in (File, File()):
            with self.assertRaisesRegex(TypeError, "not of a pydantic model"):
                mark.__get_pydantic_core_schema__(Path, lambda source: None)

    @unittest.skipIf(pydantic is None, "pydantic is not installed")
    def test_a_pydantic_model_with_a_file_is_refused(self):
        words = "windlass.File declares an argument or a field of a dataclass, not of a pydantic model"
        with self.assertRaisesRegex(TypeError, words):

            class Args(pydantic.BaseModel):
                file: Annotated[Path, File(write_back=True)]

        with self.assertRaisesRegex(TypeError, words):

            class Bare(pydantic.BaseModel):
                files: Optional[list[Annotated[Path, File]]]

        with self.assertRaisesRegex(TypeError, words):

            class Deep(pydantic.BaseModel):
                held: Held

        class Deferred(pydantic.BaseModel):
            model_config = pydantic.ConfigDict(defer_build=True)
            file: Annotated[Path, File()]

        class Overridden(pydantic.BaseModel):
            file: Annotated[Path, File(), pydantic.GetPydanticSchema(lambda source, of: of.generate_schema(str))]

        class Default(pydantic.BaseModel):
            file: Path = File()  # type: ignore[assignment]

        for model in (Deferred, Overridden, Default):
            with self.subTest(model):
                self.check_refused(model)

        class Fine(pydantic.BaseModel):
            name: str

        self.assertFalse(taking(Fine).takes_files)
        self.check(taking(list[Union[Fine, Annotated[Path, File()]]]), {"x": ["a"]}, [Path("copy:a")])


if __name__ == "__main__":
    unittest.main()
