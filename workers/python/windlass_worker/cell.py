"""A cell: the source of one turn, compiled and run in the session's `__main__`.

Owns the namespace, the compiler flags that persist between turns (`from __future__`), and the
sources that tracebacks quote. Never catches an exception of the code.
"""

import sys

from . import awaiting
from .value import value_json

_ONLY_AST = 0x400
_TOP_LEVEL_AWAIT = 0x2000
_IS_COROUTINE = 0x80
# The compiler flags of all `from __future__` statements.
_FUTURES = 0x1FE0000

# Limits of the sources that are kept for tracebacks. The oldest are dropped first.
KEPT_CELLS_MAX = 1000
KEPT_CHARS_MAX = 8 * 1024 * 1024

# The names of sources that are not cells. Tracebacks begin there too.
FILE_NAMES = set()


class Cells:
    def __init__(self):
        self.namespace = _fresh_main().__dict__
        self._flags = _TOP_LEVEL_AWAIT
        self._name = "<cell %d>"
        self._sources = {}
        self._kept_chars = 0
        self._lines = None
        # The value of the last expression of this turn as JSON, if it has one.
        self.value = None

    def run(self, turn, body, name=None):
        """Run the source; its last statement, if an expression, is shown."""
        source = body.decode("utf-8")
        if name is None:
            name = self._name % turn
        else:
            FILE_NAMES.add(name)
        self._keep(name, source)
        statements, expression = self._compile(source, name)
        if _awaits(statements) or _awaits(expression):
            value = awaiting.run(self._evaluate_on_loop(statements, expression))
        else:
            value = self._evaluate(statements, expression)
        if expression is not None:
            sys.displayhook(value)
            self.value = value_json(value)

    def run_program(self, body, name):
        """Run the source as the interpreter runs a file: no value is shown."""
        FILE_NAMES.add(name)
        self._keep(name, body.decode("utf-8", "replace"))
        eval(compile(body, name, "exec", 0, True), self.namespace)

    def rehearse(self):
        """Compile and run a sample cell in a separate namespace, to warm up."""
        for source in ("1 + 1", "number = 1\nnumber + 1"):
            statements, expression = self._compile(source, "<rehearsal>")
            namespace = {}
            if statements is not None:
                eval(statements, namespace)
            repr(eval(expression, namespace))

    def forget(self, turn):
        """Drop the source of that turn."""
        self._drop(self._name % turn)

    def rename(self, session):
        """Number cells anew. Existing cells keep their names."""
        self._name = "<cell %s:%%d>" % session

    def quote_in(self, linecache):
        """`linecache` was imported: tracebacks, `pdb` and `inspect` find the sources there."""
        self._lines = linecache.cache
        for name, source in self._sources.items():
            self._lines[name] = _entry(name, source)

    def _compile(self, source, name):
        """The code of all statements except a last expression, and the code of that expression."""
        # Most small turns are one expression. The compiler would repeat its warnings about strings
        # with a backslash, so such sources are compiled only once, below.
        if "\n" not in source and "\\" not in source:
            try:
                return None, compile(source, name, "eval", self._flags, True)
            except SyntaxError:
                pass
        # The first import costs a millisecond, so it happens only when needed.
        from _ast import Expr, Expression, Module

        tree = compile(source, name, "exec", self._flags | _ONLY_AST, True)
        statements, expression = tree.body, None
        if statements and type(statements[-1]) is Expr:
            expression = Expression(statements.pop().value)
        code = None
        if statements:
            code = compile(Module(statements, tree.type_ignores), name, "exec", self._flags, True)
            self._flags |= code.co_flags & _FUTURES
        if expression is not None:
            expression = compile(expression, name, "eval", self._flags, True)
        return code, expression

    def _evaluate(self, statements, expression):
        if statements is not None:
            eval(statements, self.namespace)
        return eval(expression, self.namespace) if expression is not None else None

    async def _evaluate_on_loop(self, statements, expression):
        """The same with a running loop, for a cell that has an `await` anywhere."""
        value = None
        for code in (statements, expression):
            if code is not None:
                value = eval(code, self.namespace)
                if _awaits(code):
                    value = await value
        return value

    def _keep(self, name, source):
        sources = self._sources
        self._kept_chars += len(source) - len(sources.pop(name, ""))
        sources[name] = source
        while len(sources) > KEPT_CELLS_MAX or (
            self._kept_chars > KEPT_CHARS_MAX and len(sources) > 1
        ):
            self._drop(next(iter(sources)))
        if self._lines is not None:
            self._lines[name] = _entry(name, source)

    def _drop(self, name):
        self._kept_chars -= len(self._sources.pop(name, ""))
        if self._lines is not None:
            self._lines.pop(name, None)


def _awaits(code):
    return code is not None and code.co_flags & _IS_COROUTINE


def _fresh_main():
    """A `__main__` that shows nothing of the worker."""
    main = type(sys)("__main__")
    main.__builtins__ = sys.modules["builtins"]
    sys.modules["__main__"] = main
    return main


def _entry(name, source):
    lines = source.splitlines(True)
    # Tracebacks place their markers as in a file, where the last line has a line end.
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    # A modification time of None tells `linecache` that there is no file to compare with.
    return len(source), None, lines, name
