"""A tool's JSON schema as a Python signature: the order, types and descriptions of its arguments.

Owns the conversion from schema to signature and docstring. A schema is untrusted text: none of it
is executed, unknown parts are left out, and its names are used only as names.
"""

from keyword import iskeyword

# Most choices that are listed. For more, only their type is shown.
CHOICES_MAX = 8
# Longest text of one default or choice, in characters.
LITERAL_CHARS_MAX = 60
# How deep nested lists and references are followed.
DEPTH_MAX = 4

_WORDS = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "dict",
    "array": "list",
    "null": "None",
}
_TYPES = {"str": str, "int": int, "float": float, "bool": bool, "dict": dict, "list": list}


class Parameters:
    """The arguments of a tool."""

    def __init__(self, schema):
        schema = schema if isinstance(schema, dict) else {}
        properties = schema.get("properties")
        self.properties = properties if isinstance(properties, dict) else {}
        required = schema.get("required")
        names = [name for name in required if isinstance(name, str)] if _is_list(required) else []
        self._root = schema
        self.required = frozenset(names)
        # Required arguments first, as in any signature, and otherwise in the schema's order.
        ordered = sorted(self.properties, key=lambda name: name not in self.required)
        self.positional = tuple(name for name in ordered if _is_name(name))
        self._closed = schema.get("additionalProperties") is False
        self._has_others = bool(schema.get("additionalProperties")) or len(ordered) > len(
            self.positional
        )

    def bind(self, tool, positional, named):
        """The arguments by name. Raises TypeError as a Python function does."""
        if positional:
            named = self._with_positional(tool, positional, named)
        if not self.required <= named.keys():
            missing = [name for name in self.positional if name in self.required - named.keys()]
            missing += sorted(self.required - named.keys() - set(missing))
            raise TypeError(
                "%s() missing %d required argument%s: %s"
                % (tool, len(missing), "s" * (len(missing) > 1), ", ".join(map(repr, missing)))
            )
        if self._closed and not named.keys() <= self.properties.keys():
            name = next(name for name in named if name not in self.properties)
            raise TypeError("%s() got an unexpected keyword argument %r" % (tool, name))
        return named

    def _with_positional(self, tool, positional, named):
        names = self.positional
        if len(positional) > len(names):
            plural, verb = "s" * (len(names) != 1), "was" if len(positional) == 1 else "were"
            raise TypeError(
                "%s() takes %d positional argument%s but %d %s given"
                % (tool, len(names), plural, len(positional), verb)
            )
        given = dict(zip(names, positional))
        for name in named:
            if name in given:
                raise TypeError("%s() got multiple values for argument %r" % (tool, name))
        given.update(named)
        return given

    def signature(self, inspect):
        """For `inspect.signature`."""
        parameter, found = inspect.Parameter, []
        for name in self.positional:
            schema = self.properties[name]
            default = parameter.empty if name in self.required else _default(schema)
            words = self._words(schema)
            found.append(
                parameter(
                    name,
                    parameter.POSITIONAL_OR_KEYWORD,
                    default=default,
                    annotation=_TYPES.get(words) or (Text(words) if words else parameter.empty),
                )
            )
        if self._has_others or not (self.properties or self._closed):
            free = next(n for n in ("others", "others_", "others__") if n not in self.positional)
            found.append(parameter(free, parameter.VAR_KEYWORD))
        return inspect.Signature(found)

    def docstring(self, description):
        """The tool's description, then those of its arguments."""
        parts = [description.strip()] if isinstance(description, str) else []
        lines = []
        for name in sorted(self.properties, key=lambda name: name not in self.required):
            schema = self.properties[name]
            words = self._words(schema)
            line = "    %s%s" % (name, " (%s)" % words if words else "")
            text = schema.get("description") if isinstance(schema, dict) else None
            if isinstance(text, str) and text.strip():
                line += ": " + "\n        ".join(text.strip().splitlines())
            lines.append(line)
        if lines:
            parts.append("\n".join(["Parameters:", *lines]))
        return "\n\n".join(part for part in parts if part) or None

    def _words(self, schema, depth=DEPTH_MAX):
        """The type as Python text; empty if unknown."""
        if not isinstance(schema, dict) or depth == 0:
            return ""
        if "$ref" in schema:
            return self._words(self._referred(schema["$ref"]), depth - 1)
        if "const" in schema:
            return "Literal[%s]" % _literal(schema["const"])
        choices = schema.get("enum")
        if _is_list(choices) and 0 < len(choices) <= CHOICES_MAX:
            return "Literal[%s]" % ", ".join(map(_literal, choices))
        for several in ("anyOf", "oneOf"):
            if _is_list(schema.get(several)):
                return _either(self._words(one, depth - 1) for one in schema[several])
        whole = schema.get("allOf")
        if _is_list(whole) and len(whole) == 1:
            return self._words(whole[0], depth - 1)
        kind = schema.get("type")
        if _is_list(kind):
            return _either(self._word(one, schema, depth) for one in kind)
        return self._word(kind, schema, depth)

    def _word(self, kind, schema, depth):
        word = _WORDS.get(kind, "") if isinstance(kind, str) else ""
        items = self._words(schema.get("items"), depth - 1) if word == "list" else ""
        return "list[%s]" % items if items else word

    def _referred(self, path):
        """The target of a reference within the schema."""
        found = self._root
        if not isinstance(path, str) or not path.startswith("#/"):
            return None
        for step in path[2:].split("/"):
            found = found.get(step) if isinstance(found, dict) else None
        return found


class Text:
    """Text in a signature that is not a Python value."""

    __slots__ = ("_text",)

    def __init__(self, text):
        self._text = text

    def __repr__(self):
        return self._text


def _either(words):
    known = list(dict.fromkeys(words))
    return "" if "" in known else " | ".join(known)


def _default(schema):
    default = schema.get("default") if isinstance(schema, dict) else None
    text = repr(default)
    return default if len(text) <= LITERAL_CHARS_MAX else Text(text[:LITERAL_CHARS_MAX] + "...")


def _literal(value):
    text = repr(value)
    return text if len(text) <= LITERAL_CHARS_MAX else text[:LITERAL_CHARS_MAX] + "..."


def _is_list(value):
    return isinstance(value, list)


def _is_name(name):
    return name.isidentifier() and not iskeyword(name)
