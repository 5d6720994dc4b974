"""Removes the ways from Python to JavaScript.

Owns the list of what is removed. This is one of several walls (see README.md): the flags that the
node starts Node.js with, and the session's sandbox, hold even if code finds a way around this one.
"""

import gc
import sys

_MODULES = ("js", "pyodide", "_pyodide", "pyodide_js", "_pyodide_core", "pyodide_jsmodules")
# Types that wrap JavaScript objects or make them.
_REFUSED = "JavaScript cannot be reached from a session"


def close_javascript():
    removed = [name for name in sys.modules if name.split(".")[0] in _MODULES]
    modules = [sys.modules.pop(name) for name in removed]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not _is_pyodides(finder)]
    sys.path_hooks[:] = [hook for hook in sys.path_hooks if not _is_pyodides(hook)]
    for module in modules:
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict):
            names.clear()
    modules.clear()
    sys.meta_path.insert(0, _Refusal())
    gc.collect()


class _Refusal:
    """Refuses imports of the removed modules, with a reason."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in _MODULES and name not in sys.modules:
            raise ModuleNotFoundError("%s: there is no module %r" % (_REFUSED, name), name=name)
        return None


def _is_pyodides(finder):
    module = getattr(finder, "__module__", None) or type(finder).__module__
    return str(module).partition(".")[0] in _MODULES
