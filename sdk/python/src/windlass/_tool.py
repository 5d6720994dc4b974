"""A tool made from a plain function: its name, description and schema. Knows no connection."""

from __future__ import annotations

import inspect
import json
import re
import sys
import typing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from ._file_arguments import mark_of, mentions_file
from ._file_unions import declares_file, is_open
from ._schema import (
    ArgumentError,
    Builder,
    Convert,
    Schema,
    default_of,
    misplaced_default,
    take_fields,
    to_json,
)

#: A name, or a group, a dot and a name.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
NAME_BYTES_MAX = 128

_Parameter = inspect.Parameter


@dataclass(frozen=True)
class Tool:
    """A function that code can call by name."""

    name: str
    description: str
    input_schema: Schema
    function: Callable[..., Any]
    is_async: bool
    #: Default deadline of a call in seconds.
    deadline: Optional[float] = None
    #: Whether an argument is a file of the workspace: then `bind` works only within a call.
    takes_files: bool = False
    _converts: Mapping[str, Convert] = field(default_factory=dict, repr=False)
    _required: Sequence[str] = ()
    #: Names that the function takes by position only.
    _positional: Sequence[str] = ()
    _takes_any: bool = False
    #: The arguments' types, if all are plain types.
    _exact: Optional[Mapping[str, type]] = None

    def __post_init__(self) -> None:
        if not self.takes_files and declares_file(self.input_schema):
            raise TypeError(
                f"the schema of tool {self.name} declares a file, which is copied only for a function "
                "with type hints: make the tool with windlass.tool(function)"
            )

    def call(self, body: bytes) -> Any:
        """Calls the function with arguments in JSON. The result of an async function must be
        awaited."""
        given = decode(str(body, "utf-8")) if body else {}
        exact = self._exact
        if exact is not None and type(given) is dict and len(given) == len(exact):
            # All arguments are present and have exactly their plain types: no conversion is needed.
            for name, value in given.items():
                if exact.get(name) is not type(value):
                    break
            else:
                return self.function(**given)
        return self._bound(given)()

    def bind(self, body: bytes) -> Callable[[], Any]:
        """The function with arguments in JSON, converted."""
        return self._bound(decode(str(body, "utf-8")) if body else {})

    def _bound(self, given: Any) -> Callable[[], Any]:
        if self._takes_any and isinstance(given, dict):
            known = {name: one for name, one in given.items() if name in self._converts}
            taken = take_fields(known, "", dict(self._converts), self._required)
            taken.update((name, one) for name, one in given.items() if name not in known)
        else:
            taken = take_fields(given, "", self._converts, self._required)  # type: ignore[arg-type]
        if not self._positional:
            return partial(self.function, **taken)
        first = [taken.pop(name) for name in self._positional if name in taken]
        return partial(self.function, *first, **taken)

    def declaration(self) -> dict[str, Any]:
        said: dict[str, Any] = {"name": self.name, "input_schema": self.input_schema}
        if self.description:
            said["description"] = self.description
        if self.deadline is not None:
            said["deadline_ms"] = int(self.deadline * 1000)
        return said


#: A function or tool that can be offered.
Function = Union[Callable[..., Any], Tool]


def tool(
    function: Function,
    *,
    name: Optional[str] = None,
    description: Optional[str] = None,
    deadline: Optional[float] = None,
) -> Tool:
    """Makes a tool from a function: the schema comes from the type hints, the description from the
    docstring."""
    if isinstance(function, Tool):
        return function
    name = name or str(getattr(function, "__name__", ""))
    if not _NAME.fullmatch(name) or len(name) > NAME_BYTES_MAX:
        raise ValueError(
            f"{name!r} is not a valid tool name: pass one with windlass.tool(function, name=...), "
            "made of letters, digits and _, with an optional group and a dot before it"
        )
    called: Any = function
    while isinstance(called, partial):
        called = called.func
    target = called if inspect.isroutine(called) else getattr(called, "__call__")
    try:
        # The arguments of a class are those of its `__init__`, which the signature has.
        of_class = inspect.isclass(called)
        hints = {} if of_class else typing.get_type_hints(target, include_extras=True)
    except (NameError, TypeError) as error:
        raise TypeError(f"the type hints of tool {name} cannot be read: {error}") from None
    module = sys.modules.get(getattr(called, "__module__", None) or "")
    names = getattr(inspect.unwrap(target), "__globals__", vars(module) if module else {})
    builder = Builder(names)
    parts = _Parts()
    for parameter in inspect.signature(function).parameters.values():
        # A decorator can have a signature without type hints.
        said = Any if parameter.annotation is _Parameter.empty else parameter.annotation
        parts.add(name, parameter, hints.get(parameter.name, said), builder)
    schema: Schema = {
        "type": "object",
        "properties": parts.properties,
        "required": parts.required,
        "additionalProperties": parts.takes_any,
    }
    if builder.definitions:
        schema["$defs"] = builder.definitions
    if is_open(schema):
        raise TypeError(
            f"tool {name}: the code could choose whether a text is a file or not; use no union of a "
            "windlass.File with text or Any"
        )
    doc = inspect.getdoc(called) if inspect.isroutine(called) else called.__doc__
    return Tool(
        name=name,
        description=description if description is not None else inspect.cleandoc(doc or ""),
        input_schema=schema,
        function=function,
        is_async=inspect.iscoroutinefunction(target),
        deadline=deadline,
        takes_files=builder.takes_files,
        _converts=parts.converts,
        _required=tuple(parts.required),
        _positional=tuple(parts.positional),
        _takes_any=parts.takes_any,
        _exact=parts.exact() if not parts.positional and not parts.takes_any else None,
    )


class _Parts:
    """Collects a signature, parameter by parameter."""

    def __init__(self) -> None:
        self.properties: dict[str, Schema] = {}
        self.required: list[str] = []
        self.converts: dict[str, Convert] = {}
        self.positional: list[str] = []
        self.takes_any = False
        self._hints: dict[str, Any] = {}

    def exact(self) -> Optional[dict[str, type]]:
        plain = all(hint in (str, int, float, bool) for hint in self._hints.values())
        return dict(self._hints) if plain else None

    def add(self, tool: str, parameter: _Parameter, hint: Any, builder: Builder) -> None:
        if parameter.kind is _Parameter.VAR_KEYWORD:
            if mentions_file(hint):
                raise TypeError(
                    f"tool {tool} takes files as **{parameter.name}, where none is copied: take a "
                    "dict[str, Annotated[Path, windlass.File()]]"
                )
            self.takes_any = True
            return
        if parameter.kind is _Parameter.VAR_POSITIONAL:
            raise TypeError(
                f"tool {tool} takes *{parameter.name}, but arguments have names: take a list"
            )
        try:
            if mark_of(parameter.default) is not None:
                raise misplaced_default(parameter.name)
            schema, convert = builder.build(hint)
        except (NameError, TypeError) as error:
            raise TypeError(f"tool {tool}, argument {parameter.name}: {error}") from None
        if parameter.default is _Parameter.empty:
            self.required.append(parameter.name)
        else:
            sayable, default = default_of(parameter.default)
            schema = {**schema, "default": default} if sayable else schema
            if parameter.default is None:
                convert = _or_none(convert)
        if parameter.kind is _Parameter.POSITIONAL_ONLY:
            self.positional.append(parameter.name)
        self.properties[parameter.name] = schema
        self._hints[parameter.name] = hint
        self.converts[parameter.name] = convert


def _or_none(convert: Convert) -> Convert:
    """`x: str = None` accepts None, whatever its hint says."""
    return lambda value, where: None if value is None else convert(value, where)


_raw_decode = json.JSONDecoder().raw_decode


def decode(text: str) -> Any:
    """`json.loads` without its handling of surrounding spaces, which is slower."""
    try:
        value, end = _raw_decode(text)
    except ValueError:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


_encode = json.JSONEncoder(
    separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=to_json
).encode

#: Results that need no encoder, which would be slower.
_PLAIN = {None: b"null", True: b"true", False: b"false"}


def encode_result(value: Any) -> bytes:
    """A result in JSON."""
    kind = type(value)
    if kind is int:
        return b"%d" % value
    if value is None or kind is bool:
        return _PLAIN[value]
    return _encode(value).encode()


def encode_error(error: BaseException) -> bytes:
    """A raised exception, as the calling code will see it."""
    kind = type(error)
    message = str(error) or kind.__name__
    if isinstance(error, ArgumentError):
        return _encode({"code": "bad_request", "message": message}).encode()
    said = {"message": message, "type": kind.__name__}
    return _encode(said).encode("utf-8", "replace")
