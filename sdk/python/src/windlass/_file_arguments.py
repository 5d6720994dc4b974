"""Arguments of tools that are files of the calling session's workspace: how a function declares one.
Knows no connection: `_host_copies` makes the copies."""

from __future__ import annotations

import pathlib
import re
import typing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Callable, Optional

#: The `format` of the argument in the tool's schema.
COPY_FORMAT = "windlass-file"
WRITE_BACK_FORMAT = "windlass-file-write-back"


@dataclass(frozen=True)
class File:
    """Declares an argument as a file of the workspace: `Annotated[Path, windlass.File()]`. The code
    passes a path in its workspace, and the function gets the path of a copy on its own machine. The
    copy is removed after the call."""

    #: Write the changed copy to the workspace before the call returns.
    write_back: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        kind = WRITE_BACK_FORMAT if self.write_back else COPY_FORMAT
        return {"type": "string", "format": kind}

    def described(self, words: str) -> str:
        """The argument's description, for the model that writes the code."""
        changes = ", which the tool may change" if self.write_back else ""
        said = f"The path of a file in the workspace{changes}."
        return f"{words.rstrip().rstrip('.')}. {said}" if words.strip() else said

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """pydantic calls this for a field of a model. It would give the function the code's path
        instead of a copy, so the model is refused."""
        raise TypeError(
            "windlass.File declares an argument or a field of a dataclass, not of a pydantic model"
        )


def mark_of(note: Any) -> Optional[File]:
    """The declaration that an object of a type hint is, if it is one. `File` means `File()`."""
    # In the oldest supported Python, `list[int]` looks like a class.
    if isinstance(note, type) and typing.get_origin(note) is None and issubclass(note, File):
        return note()
    return note if isinstance(note, File) else None


#: A declaration in a type hint that is still text.
_FILE_TEXT = re.compile(r"\bAnnotated\b.*\bFile\b")


def mentions_file(hint: Any) -> bool:
    """Whether a type hint declares a file, also in the fields of the classes that it names. For hints
    that no conversion is built from: a declaration there must be refused."""
    todo, seen = [hint], dict[int, Any]()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if mark_of(one) is not None:
            return True
        text = one.__forward_arg__ if isinstance(one, typing.ForwardRef) else one
        if isinstance(text, str):
            if _FILE_TEXT.search(text):
                return True
        elif isinstance(one, (list, tuple)):
            todo += one
        elif typing.get_origin(one) is not typing.Literal:
            todo += typing.get_args(one)
            todo += [getattr(one, name, None) for name in _HINTS_WITHIN]
            kind = typing.get_origin(one) or one
            if isinstance(kind, type):
                todo += _hints_of(kind) + arguments_of_bases(kind)
    return False


#: Attributes of type variables, `NewType` and type aliases that hold another hint.
_HINTS_WITHIN = ("__bound__", "__constraints__", "__default__", "__supertype__", "__value__")


def arguments_of_bases(kind: type) -> list[Any]:
    """The type arguments of a class's generic bases: `X` of `class Sub(Base[X])`. The hints of inherited
    fields name type variables instead."""
    found, todo = list[Any](), [kind]
    for one in todo:
        bases = vars(one).get("__orig_bases__", ()) + one.__bases__
        found += [argument for base in bases for argument in typing.get_args(base)]
        origins = [typing.get_origin(base) or base for base in bases]
        todo += [origin for origin in origins if isinstance(origin, type) and origin not in todo]
    return found


def _hints_of(kind: type) -> list[Any]:
    try:
        hints = list(typing.get_type_hints(kind, include_extras=True).values())
    except Exception:
        # A hint in text names something that is not known here. The other hints can be examined.
        each = [vars(base).get("__annotations__", {}) for base in kind.__mro__]
        hints = [hint for annotations in each for hint in annotations.values()]
    # Class variables of a library's base class lead to the whole library.
    return [hint for hint in hints if typing.get_origin(hint) is not typing.ClassVar]


#: Makes a copy of a workspace file for the current call.
Copy = Callable[[str, File], pathlib.Path]

#: Set while the arguments of a call are converted.
COPY: ContextVar[Optional[Copy]] = ContextVar("windlass_file_copy", default=None)
