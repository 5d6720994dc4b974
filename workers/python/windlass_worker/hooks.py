"""Adjusts other modules when the running code imports them, and builtins.

Owns one finder on `sys.meta_path` that finds no module itself. Never imports a module on its own.
"""

import sys


class Hooks:
    """For each named module, calls a function with that module after its import."""

    def __init__(self, hooks):
        self._hooks = hooks

    def install(self):
        for name in tuple(self._hooks):
            if name in sys.modules:
                _apply(self._hooks.pop(name), sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):
        hook = self._hooks.get(name)
        if hook is None:
            return None
        spec = self._find_elsewhere(name, path, target)
        loader = getattr(spec, "loader", None)
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return spec

        def exec_module(module):
            execute(module)
            self._hooks.pop(name, None)
            _apply(hook, module)

        try:
            loader.exec_module = exec_module
        except (AttributeError, TypeError):
            # The loader cannot be changed: the module works without the adjustment.
            pass
        return spec

    def _find_elsewhere(self, name, path, target):
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


def _apply(hook, module):
    try:
        hook(module)
    except Exception:
        # The module is an unknown version. It stays usable without the adjustment.
        pass


def like(original, replacement):
    """Make a replaced builtin describe itself as the original does."""
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__text_signature__"):
        try:
            setattr(replacement, name, getattr(original, name))
        except (AttributeError, TypeError):
            pass
    return replacement
