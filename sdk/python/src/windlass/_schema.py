"""JSON schemas of type hints, and the conversion of JSON values to these types. Knows no function
and no tool."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import json
import pathlib
import sys
import types
import typing
from typing import Any, Callable, Literal, Union

from ._file_arguments import COPY, File, arguments_of_bases, mark_of, mentions_file
from ._file_unions import declares_file

Schema = dict[str, Any]

#: Takes a JSON value and its path; returns the value that the function expects.
Convert = Callable[[Any, str], Any]

#: Most levels of nested types.
DEPTH_MAX = 64


class ArgumentError(ValueError):
    """An argument does not match the tool's schema."""


class SchemaError(TypeError):
    """A type hint that has no JSON schema."""


class Builder:
    """Makes schemas and conversions. A type that contains itself is defined once and referenced."""

    def __init__(self, names: dict[str, Any]) -> None:
        #: The namespace for hints that are still text.
        self._names = names
        self.definitions: dict[str, Schema] = {}
        #: Whether an argument, or a part of one, is a file of the workspace.
        self.takes_files = False
        #: Types that are being built, and the names of those that were met again.
        self._open: dict[Any, str] = {}
        self._converts: dict[Any, Convert] = {}

    def build(self, hint: Any) -> tuple[Schema, Convert]:
        if isinstance(hint, (str, typing.ForwardRef)):
            # Inside `list["Name"]` the oldest supported Python leaves the name as text.
            text = hint if isinstance(hint, str) else hint.__forward_arg__
            return self.build(eval(text, self._names))
        if hint in (Any, object):
            return {}, _as_is
        if isinstance(hint, typing.TypeVar):
            if mentions_file(hint):
                raise _misplaced(f"the bound of {hint}")
            return {}, _as_is
        if hint is None or hint is type(None):
            return {"type": "null"}, _simple("null", type(None))
        plain = _PLAIN.get(hint) if isinstance(hint, type) else None
        if plain is not None:
            return dict(plain[0]), plain[1]
        supertype = getattr(hint, "__supertype__", None)
        if supertype is not None:
            return self.build(supertype)
        origin = typing.get_origin(hint)
        if origin is not None:
            return self._generic(hint, origin, typing.get_args(hint))
        if isinstance(hint, type):
            return self._class(hint)
        raise SchemaError(f"no JSON schema says {hint!r}; use JSON's types, a dataclass or an Enum")

    def _generic(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> tuple[Schema, Convert]:
        if origin is typing.Annotated:
            for note in args[1:]:
                mark = mark_of(note)
                if mark is not None:
                    return self._file(args, mark)
            schema, convert = self.build(args[0])
            said = [note for note in args[1:] if isinstance(note, str)]
            return ({**schema, "description": said[0]} if said else schema), convert
        if origin in (Union, types.UnionType):
            return self._union(args)
        if origin is Literal:
            return {"enum": list(args)}, _one_of(args)
        if origin in _FIELD_MARKS:
            return self.build(args[0])
        if origin is tuple and args and args[-1] is not Ellipsis:
            return self._tuple(args)
        if origin in _LISTS:
            return self._list(args[0], _LISTS[origin])
        if origin in _DICTS:
            return self._dict(args)
        raise SchemaError(f"no JSON schema says {hint!r}; use list, dict, Union or Literal")

    def _file(self, args: tuple[Any, ...], mark: File) -> tuple[Schema, Convert]:
        kind = args[0]
        if kind not in (pathlib.Path, str):
            raise SchemaError(f"windlass.File annotates pathlib.Path or str, not {kind!r}")
        self.takes_files = True
        said = next((note for note in args[1:] if isinstance(note, str)), "")

        def convert(value: Any, where: str) -> Any:
            if not isinstance(value, str):
                raise _wrong(where, "the path of a file", value)
            copy = COPY.get()
            if copy is None:
                raise RuntimeError("a file of the workspace can be copied within a call only")
            return kind(copy(value, mark))

        return {**mark.schema, "description": mark.described(said)}, convert

    def _class(self, hint: type) -> tuple[Schema, Convert]:
        if issubclass(hint, File):
            raise _misplaced("place of a type")
        if hint in _LISTS:
            return self._list(Any, _LISTS[hint])
        if hint in _DICTS:
            return self._dict((str, Any))
        if issubclass(hint, enum.Enum):
            return {"enum": [member.value for member in hint]}, _member(hint)
        if hasattr(hint, "model_json_schema") and hasattr(hint, "model_validate"):
            if mentions_file(hint) or _has_file_for_default(hint):
                raise _misplaced(f"{hint.__qualname__}, a class with a `model_validate` of its own")
            return _model(hint)
        if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
            return self._object(hint)
        raise SchemaError(
            f"no JSON schema says {hint.__qualname__}; use JSON's types, a dataclass or an Enum"
        )

    def _union(self, args: tuple[Any, ...]) -> tuple[Schema, Convert]:
        built = [self.build(arg) for arg in args]

        def convert(value: Any, where: str) -> Any:
            faults = []
            for (_, attempt), arg in zip(built, args):
                # 1 is also a float, and True an int, so an exact type match goes first.
                if type(value) is arg:
                    return attempt(value, where)
            for _, attempt in built:
                try:
                    return attempt(value, where)
                except ArgumentError as fault:
                    faults.append(str(fault))
            raise ArgumentError(_likeliest(faults, where))

        return {"anyOf": [schema for schema, _ in built]}, convert

    def _list(self, item: Any, make: Callable[[list[Any]], Any]) -> tuple[Schema, Convert]:
        schema, convert_item = self.build(item)

        def convert(value: Any, where: str) -> Any:
            if not isinstance(value, list):
                raise _wrong(where, "a list", value)
            return make([convert_item(one, f"{where}[{at}]") for at, one in enumerate(value)])

        return ({"type": "array", "items": schema} if schema else {"type": "array"}), convert

    def _tuple(self, args: tuple[Any, ...]) -> tuple[Schema, Convert]:
        built = [self.build(arg) for arg in args]

        def convert(value: Any, where: str) -> Any:
            if not isinstance(value, list) or len(value) != len(built):
                raise _wrong(where, f"a list of {len(built)}", value)
            parts = enumerate(zip(built, value))
            return tuple(part(one, f"{where}[{at}]") for at, ((_, part), one) in parts)

        items = {"prefixItems": [schema for schema, _ in built], "items": False}
        return {"type": "array", **items, "minItems": len(built)}, convert

    def _dict(self, args: tuple[Any, ...]) -> tuple[Schema, Convert]:
        if args[0] not in (str, Any):
            raise SchemaError(f"JSON's objects have text for keys, not {args[0]!r}")
        schema, convert_value = self.build(args[1])

        def convert(value: Any, where: str) -> Any:
            if not isinstance(value, dict):
                raise _wrong(where, "an object", value)
            return {key: convert_value(one, f"{where}.{key}") for key, one in value.items()}

        return {"type": "object", "additionalProperties": schema or True}, convert

    def _object(self, hint: Any) -> tuple[Schema, Convert]:
        name: str = hint.__name__
        if hint in self._open:
            # The type contains itself.
            self._open[hint] = name
            self.definitions.setdefault(name, {})
            return {"$ref": f"#/$defs/{name}"}, lambda v, w: self._converts[hint](v, w)
        if len(self._open) > DEPTH_MAX:
            raise SchemaError(f"{name} is nested too deep")
        self._open[hint] = ""
        outside = self._names
        self._names = {**vars(sys.modules[hint.__module__]), name: hint}
        try:
            schema, convert = self._fields_of(hint)
        finally:
            self._names = outside
        self._converts[hint] = convert
        if self._open.pop(hint):
            self.definitions[name] = schema
            return {"$ref": f"#/$defs/{name}"}, convert
        return schema, convert

    def _fields_of(self, hint: Any) -> tuple[Schema, Convert]:
        hints = typing.get_type_hints(hint, include_extras=True)
        if any(map(mentions_file, arguments_of_bases(hint))):
            raise _misplaced(f"the type arguments of {hint.__name__}'s bases")
        if dataclasses.is_dataclass(hint):
            known = [field for field in dataclasses.fields(hint) if field.init]
            for field in known:
                defaults = (field.default, field.default_factory, *field.metadata.values())
                if any(mark_of(one) is not None for one in defaults):
                    raise misplaced_default(field.name)
            names = [field.name for field in known]
            required = [field.name for field in known if _has_no_default(field)]
            make: Callable[..., Any] = typing.cast(Any, hint)
        else:
            names, required, make = list(hints), sorted(hint.__required_keys__), dict
        built = {name: self.build(hints[name]) for name in names}
        schema: Schema = {
            "type": "object",
            "properties": {name: schema for name, (schema, _) in built.items()},
            "required": required,
            "additionalProperties": False,
        }
        doc = hint.__doc__ or ""
        # A dataclass without a docstring has its signature as one.
        if doc and not doc.startswith(f"{hint.__name__}("):
            schema["description"] = doc.strip()
        converts = {name: convert for name, (_, convert) in built.items()}
        return schema, lambda v, w: make(**take_fields(v, w, converts, required))


def take_fields(
    value: Any, where: str, converts: dict[str, Convert], required: typing.Sequence[str]
) -> dict[str, Any]:
    """The converted fields of a JSON object. Raises if one is missing or unknown."""
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    missing = [name for name in required if name not in value]
    if missing:
        raise ArgumentError(f"{_place(where)}{_names(missing)} missing")
    try:
        before = f"{where}." if where else ""
        return {name: converts[name](one, f"{before}{name}") for name, one in value.items()}
    except KeyError:
        unknown = [name for name in value if name not in converts]
        known = ", ".join(converts) or "none"
        raise ArgumentError(f"{_place(where)}{_names(unknown)} unknown; there are: {known}") from None


def to_json(value: Any) -> Any:
    """Converts a value that JSON cannot represent directly."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset, collections.abc.Iterator, collections.abc.KeysView)):
        return list(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, collections.abc.Mapping):
        return dict(value)
    raise TypeError(f"the result has a {type(value).__qualname__}, which JSON cannot say")


def default_of(value: Any) -> tuple[bool, Any]:
    """Whether JSON can represent a default, and its JSON value."""
    try:
        return True, json.loads(json.dumps(value, default=to_json, allow_nan=False))
    except (TypeError, ValueError):
        return False, None


def _as_is(value: Any, where: str) -> Any:
    return value


def _simple(word: str, kind: type) -> Convert:
    def convert(value: Any, where: str) -> Any:
        if type(value) is not kind:
            raise _wrong(where, word, value)
        return value

    return convert


def _integer(value: Any, where: str) -> int:
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not int:
        raise _wrong(where, "an integer", value)
    return value


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float):
        raise _wrong(where, "a number", value)
    return float(value)


def _parsed(word: str, parse: Callable[[str], Any]) -> Convert:
    def convert(value: Any, where: str) -> Any:
        try:
            return parse(value)
        except (ValueError, TypeError):
            raise _wrong(where, word, value) from None

    return convert


def _one_of(choices: tuple[Any, ...]) -> Convert:
    def convert(value: Any, where: str) -> Any:
        for choice in choices:
            if type(choice) is type(value) and choice == value:
                return choice
        raise _wrong(where, "one of " + ", ".join(map(repr, choices)), value)

    return convert


def _member(kind: type[enum.Enum]) -> Convert:
    def convert(value: Any, where: str) -> Any:
        try:
            return kind(value)
        except ValueError:
            choices = ", ".join(repr(member.value) for member in kind)
            raise _wrong(where, f"one of {choices}", value) from None

    return convert


def _model(kind: Any) -> tuple[Schema, Convert]:
    """A class of a validation library, recognised by its methods; the library is not imported."""

    def convert(value: Any, where: str) -> Any:
        try:
            return kind.model_validate(value)
        except ValueError as error:
            raise ArgumentError(f"{_place(where)}{error}") from None

    schema = dict(kind.model_json_schema())
    if declares_file(schema):
        raise _misplaced(f"the schema of {kind.__qualname__}")
    return schema, convert


def _has_file_for_default(kind: Any) -> bool:
    fields = getattr(kind, "model_fields", None)
    if not isinstance(fields, dict):
        return False
    return any(mark_of(getattr(field, "default", None)) is not None for field in fields.values())


def _misplaced(where: str) -> SchemaError:
    """For a declaration that no conversion is built from: the function would get the code's path."""
    return SchemaError(
        f"windlass.File is in {where}, where no file is copied; it annotates an argument, a field "
        "of a dataclass or of a TypedDict: Annotated[Path, windlass.File()]"
    )


def misplaced_default(name: str) -> SchemaError:
    return _misplaced(f"place of the default of {name}")


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _wrong(where: str, wanted: str, value: Any) -> ArgumentError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return ArgumentError(f"{_place(where)}must be {wanted}, not {shown}")


def _likeliest(faults: list[str], where: str) -> str:
    """The most useful error of a union's choices: the one from the deepest level, or all of them.
    """
    deeper = [fault for fault in faults if not fault.startswith(f"{where} must be")]
    return deeper[0] if len(deeper) == 1 else "; or ".join(faults)


def _place(where: str) -> str:
    return f"{where} " if where else ""


def _names(names: list[str]) -> str:
    listed = ", ".join(names)
    return f"{'argument' if len(names) == 1 else 'arguments'} {listed}"


#: `Required` and `NotRequired`, which the oldest supported Python does not have.
_FIELD_MARKS = tuple(
    getattr(typing, name) for name in ("Required", "NotRequired") if hasattr(typing, name)
)

_PLAIN: dict[type, tuple[Schema, Convert]] = {
    str: ({"type": "string"}, _simple("text", str)),
    bool: ({"type": "boolean"}, _simple("true or false", bool)),
    int: ({"type": "integer"}, _integer),
    float: ({"type": "number"}, _number),
    datetime.datetime: (
        {"type": "string", "format": "date-time"},
        _parsed("a date and time in ISO 8601", datetime.datetime.fromisoformat),
    ),
    datetime.date: (
        {"type": "string", "format": "date"},
        _parsed("a date in ISO 8601", datetime.date.fromisoformat),
    ),
    pathlib.Path: ({"type": "string"}, _parsed("a path", pathlib.Path)),
}

_LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
}

_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)

