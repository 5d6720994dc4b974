"""Refuses modules in directories that sessions can write to, before any of their code runs.

A zygote is not confined, so every module that it imports runs as the user. Its node has checked
every directory that the interpreter uses by default. An import hook can name others: for example
the finder of an editable install, which leads into a project in which sessions work. The guard is
active only while a zygote imports.
"""

import os
import stat
import sys


class ImportGuard:
    """The first finder while it is entered: asks the other finders, and checks what they found."""

    def __init__(self, roots):
        self._roots = None if roots is None else [root.rstrip("/") for root in roots]

    def __enter__(self):
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_error):
        sys.meta_path.remove(self)

    def find_spec(self, name, path=None, target=None):
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                self._check(spec)
                return spec
        return None

    def _check(self, spec):
        places = list(spec.submodule_search_locations or ())
        if spec.has_location:
            places.append(spec.origin)
        for place in places:
            real = os.path.realpath(place)
            if self._is_writable(real):
                raise ImportError("sessions can write to %s" % real, name=spec.name)
            if _has_second_name(real):
                raise ImportError(
                    "%s has a second hard link, by which a session could change it; "
                    "install it with copies, as with UV_LINK_MODE=copy" % real,
                    name=spec.name,
                )

    def _is_writable(self, real):
        if self._roots is None:
            # The roots are unknown: a session may have changed any file that this user can change.
            return os.access(real, os.W_OK) or os.access(os.path.dirname(real), os.W_OK)
        return any(real == root or real.startswith(root + "/") for root in self._roots)


def _has_second_name(path):
    """Whether a file that this user can change has another hard link, which may be in a directory
    that sessions can write to."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and os.access(path, os.W_OK)
