"""Finds unions that leave open whether a text is a file of the workspace: the code would choose whether
the function gets a copy or the code's path. Knows schemas that `_schema` builds, no type hint."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional

from ._file_arguments import COPY_FORMAT, WRITE_BACK_FORMAT

Schema = Mapping[str, Any]

#: JSON Schema formats of strings whose conversion to Python refuses a path, so that a union with a file is unambiguous.
_CHECKED_FORMATS = ("date", "date-time")

#: Any value. One object, because schemas are known by their identity.
_ANY: Schema = {}


def declares_file(schema: Any) -> bool:
    """Whether a schema declares a file anywhere in it."""
    if isinstance(schema, Mapping):
        return _is_file(schema) or any(declares_file(part) for part in schema.values())
    return isinstance(schema, list) and any(declares_file(part) for part in schema)


def is_open(schema: Schema) -> bool:
    """Whether a union anywhere in a tool's schema leaves open whether a text is a file."""
    finder = _Finder(schema.get("$defs", {}))
    return declares_file(schema) and any(map(finder.is_open, _unions(schema)))


def _unions(schema: Any) -> Iterator[list[Schema]]:
    if isinstance(schema, Mapping):
        if isinstance(schema.get("anyOf"), list):
            yield schema["anyOf"]
        for part in schema.values():
            yield from _unions(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _unions(part)


class _Finder:
    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        #: Pairs that were compared, or are being compared. A type can contain itself.
        self._compared: set[tuple[int, int]] = set()

    def is_open(self, union: list[Schema]) -> bool:
        return any(
            self._differ(one, other) for at, one in enumerate(union) for other in union[at + 1 :]
        )

    def _differ(self, one: Schema, other: Schema) -> bool:
        """Whether a value fits both schemas, and a text in it is a file for only one of them."""
        one, other = self._resolved(one), self._resolved(other)
        if (id(one), id(other)) in self._compared:
            return False
        self._compared.add((id(one), id(other)))
        for part, whole in ((one, other), (other, one)):
            if "anyOf" in part:
                return any(self._differ(choice, whole) for choice in part["anyOf"])
        if _is_file(one) or _is_file(other):
            return _accepts_text(other if _is_file(one) else one)
        kinds = {one.get("type"), other.get("type")}
        if "enum" in one or "enum" in other:
            return False
        if None in kinds:
            # One of them accepts any value.
            return self._has_file(one) or self._has_file(other)
        if kinds == {"array"}:
            return self._lists_differ(one, other)
        return kinds == {"object"} and self._objects_differ(one, other)

    def _lists_differ(self, one: Schema, other: Schema) -> bool:
        lengths = [len(each.get("prefixItems", ())) for each in (one, other)]
        fixed = [each.get("items") is False for each in (one, other)]
        if lengths[0] != lengths[1] and all(fixed):
            return False
        items = [(_item(one, at), _item(other, at)) for at in range(max(lengths) + 1)]
        if any(a and b and _disjoint(a, b) for a, b in items[: min(lengths)]):
            return False
        return any(a is not None and b is not None and self._differ(a, b) for a, b in items)

    def _objects_differ(self, one: Schema, other: Schema) -> bool:
        names = [*one.get("properties", {}), *other.get("properties", {}), ""]
        required = {*one.get("required", ()), *other.get("required", ())}
        fields = [(name, _field(one, name), _field(other, name)) for name in names]
        for name, a, b in fields:
            if name in required and (a is None or b is None or _disjoint(a, b)):
                return False
        return any(a is not None and b is not None and self._differ(a, b) for _, a, b in fields)

    def _has_file(self, schema: Schema) -> bool:
        named = [schema, *(self._definitions.values() if _refers(schema) else ())]
        return any(map(declares_file, named))

    def _resolved(self, schema: Schema) -> Schema:
        reference = schema.get("$ref")
        if reference is None:
            return schema
        # The schema of a validation library has definitions of its own. What is not found can be anything.
        definitions = {**self._definitions, **schema.get("$defs", {})}
        found: Schema = definitions.get(str(reference).rpartition("/")[2], _ANY)
        return found


def _is_file(schema: Schema) -> bool:
    return schema.get("format") in (COPY_FORMAT, WRITE_BACK_FORMAT)


def _accepts_text(schema: Schema) -> bool:
    """Whether a schema that is no file accepts any text."""
    if _is_file(schema) or "enum" in schema or schema.get("format") in _CHECKED_FORMATS:
        return False
    return bool(schema.get("type", "string") == "string")


def _refers(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        return "$ref" in schema or any(map(_refers, schema.values()))
    return isinstance(schema, list) and any(map(_refers, schema))


def _item(schema: Schema, at: int) -> Optional[Schema]:
    first = schema.get("prefixItems", ())
    return first[at] if at < len(first) else _rest(schema.get("items", True))


def _field(schema: Schema, name: str) -> Optional[Schema]:
    known = schema.get("properties", {})
    return known[name] if name in known else _rest(schema.get("additionalProperties", True))


def _rest(schema: Any) -> Optional[Schema]:
    """The schema of further values; None if there are none."""
    return None if schema is False else _ANY if schema is True else schema


def _disjoint(one: Schema, other: Schema) -> bool:
    """Whether no value fits both schemas. False if that is not known."""
    if "enum" in one and "enum" in other:
        return not any(choice in other["enum"] for choice in one["enum"])
    kinds = {one.get("type"), other.get("type")}
    return None not in kinds and len(kinds) == 2 and kinds != {"integer", "number"}
