"""Refuses modules that lie where sessions can write, before any of their code runs.

A zygote is not confined, so whatever it imports runs as the user. Its node has checked every place
that the interpreter uses by itself. An import hook can name others: an editable install, say, whose
finder leads into a project in which sessions work. Used while a zygote imports, and then gone.
"""

import os
import stat
import sys


class ImportGuard:
    """The first finder for as long as it is entered: asks the others, and checks what they found."""

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
                raise ImportError("%s lies where sessions can write" % real, name=spec.name)
            if _has_second_name(real):
                raise ImportError(
                    "%s has a second name (a hard link), by which a session could change it; "
                    "install it with copies, as with UV_LINK_MODE=copy" % real,
                    name=spec.name,
                )

    def _is_writable(self, real):
        if self._roots is None:
            # Unknown: whatever this user can change may have been changed by a session.
            return os.access(real, os.W_OK) or os.access(os.path.dirname(real), os.W_OK)
        return any(real == root or real.startswith(root + "/") for root in self._roots)


def _has_second_name(path):
    """Whether a file that this user can change has another name, which may lie where sessions write."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and os.access(path, os.W_OK)
