"""Removes the ways from Python to JavaScript.

Owns the list of what is removed. This is one of several walls (see README.md): what lockdown.mjs
does, the flags that Node.js is started with, and the session's sandbox hold even if code finds a way
around this one.
"""

import gc
import sys
import types

_PACKAGES = ("js", "pyodide", "_pyodide", "pyodide_js", "_pyodide_core")
_CORE = "_pyodide_core"


def close_javascript():
    core = [value for name, value in vars(sys.modules[_CORE]).items() if name[:2] != "__"]
    found = [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]
    modules = [sys.modules.pop(name) for name in found]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_pyodides(finder)]
    sys.path_hooks[:] = [hook for hook in sys.path_hooks if not _is_pyodides(hook)]
    _empty_modules(modules)
    _empty_instances()
    # The interpreter keeps a copy of the core's names, from which an import would make it again.
    _empty_holders(core)
    modules.clear()
    core.clear()
    sys.meta_path.insert(0, _Refusal())
    gc.collect()


class _Refusal:
    """Refuses imports of the removed modules, with a reason."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in _PACKAGES and name not in sys.modules:
            why = "there is no module %r: a session cannot reach JavaScript" % name
            raise ModuleNotFoundError(why, name=name)
        return None


def _empty_modules(modules):
    for module in modules:
        if type(module) is types.ModuleType:
            vars(module).clear()


def _empty_instances():
    """Empty the objects of the removed packages: finders, loaders, event loops."""
    for instance in gc.get_objects():
        if isinstance(instance, (type, types.FunctionType)) or not _is_pyodides(type(instance)):
            continue
        names = getattr(instance, "__dict__", None)
        if type(names) is dict:
            for value in tuple(names.values()):
                if type(value) in (dict, list, set):
                    value.clear()
            names.clear()


def _empty_holders(values):
    for value in values:
        for holder in gc.get_referrers(value):
            if type(holder) is dict:
                for name in [name for name, held in holder.items() if held is value]:
                    del holder[name]


def _is_pyodides(thing):
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return str(module).partition(".")[0] in _PACKAGES
