"""The scratch environment: a virtual environment of the session's own, into which its code installs
packages with pip or uv.

Makes it in a directory that only this session can write and that ends with the session. It has no
files of pip: it uses the pip of the session's interpreter, of the installation behind that, or the
one that `ensurepip` brings. Imported by sessions that may install packages.
"""

import os
import site
import sys
from glob import glob
from importlib.machinery import PathFinder

_CONFIG = "pyvenv.cfg"
_SITE_NAMES = ("site-packages", "dist-packages")
_INHERITS = "include-system-site-packages"
# Where Debian has the packages of its own Python, and the wheels of its `ensurepip`.
_DEBIAN_PACKAGES = "lib/python3/dist-packages"
_DEBIAN_WHEELS = "/usr/share/python-wheels/pip-*.whl"
_PIP = '#!/bin/sh\nexec "%s" -m pip "$@"\n'


def enter(root):
    """Make the environment in `root`, unless an earlier worker of this session has, and use it."""
    programs = os.path.join(root, "bin")
    threads = "t" if "t" in getattr(sys, "abiflags", "") else ""
    python = "python%d.%d%s" % (*sys.version_info[:2], threads)
    packages = os.path.join(root, "lib", python, "site-packages")
    # The file appears last and whole, so it is there only if everything else is.
    if not os.path.exists(os.path.join(root, _CONFIG)):
        _make(root, programs, python, packages)
    sys.executable = os.path.join(programs, "python")
    path = sys.path
    at = [os.path.basename(entry) in _SITE_NAMES for entry in path]
    path.insert(at.index(True) if True in at else len(path), packages)
    environ = os.environ
    environ["VIRTUAL_ENV"] = root
    environ["PATH"] = programs + os.pathsep + environ.get("PATH", os.defpath)
    # The usual caches are not writable. What pip downloads is of no use after the session.
    environ.setdefault("PIP_NO_CACHE_DIR", "1")
    environ.setdefault("UV_CACHE_DIR", os.path.join(root, "cache"))
    environ.setdefault("UV_PYTHON_DOWNLOADS", "never")


def _make(root, programs, python, packages):
    base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    os.makedirs(programs, exist_ok=True)
    os.makedirs(packages, exist_ok=True)
    libraries = getattr(sys, "platlibdir", "lib")
    if libraries != "lib":
        _link("lib", os.path.join(root, libraries))
    _link(base, os.path.join(programs, "python"))
    for name in ("python3", python):
        _link("python", os.path.join(programs, name))
    for name in ("pip", "pip3"):
        script = os.path.join(programs, name)
        _write(script, _PIP % os.path.join(programs, "python"))
        os.chmod(script, 0o755)
    in_venv = sys.prefix != sys.base_prefix
    inherits = not in_venv or _inherits(sys.prefix)
    lines = []
    if in_venv:
        directories = [path for path in site.getsitepackages([sys.prefix]) if os.path.isdir(path)]
        lines += ["import site; site.addsitedir(%r)\n" % path for path in directories]
    installer = _installer(root)
    if installer:
        lines.append(installer + "\n")
    _write(os.path.join(packages, "_windlass.pth"), "".join(lines))
    config = os.path.join(root, _CONFIG)
    # A worker that is lost while it writes leaves this name, which the next worker writes again.
    unfinished = config + ".new"
    _write(
        unfinished,
        "home = %s\n%s = %s\nversion = %d.%d.%d\n"
        % (os.path.dirname(base), _INHERITS, str(inherits).lower(), *sys.version_info[:3]),
    )
    os.replace(unfinished, config)


def _installer(root):
    """What an interpreter needs on its path to find pip. None: it has pip, or there is none."""
    if PathFinder.find_spec("pip", sys.path) is not None:
        return None
    base = site.getsitepackages([sys.base_prefix])
    found = PathFinder.find_spec("pip", [*base, os.path.join(sys.base_prefix, _DEBIAN_PACKAGES)])
    if found is not None and found.origin:
        # Only pip, not what else is installed there.
        directory = os.path.join(root, "installer")
        os.makedirs(directory, exist_ok=True)
        _link(os.path.dirname(found.origin), os.path.join(directory, "pip"))
        return directory
    bundled = os.path.join(os.path.dirname(os.__file__), "ensurepip", "_bundled", "pip-*.whl")
    wheels = sorted(glob(bundled)) or sorted(glob(_DEBIAN_WHEELS))
    return wheels[-1] if wheels else None


def _inherits(prefix):
    """Whether a virtual environment shows the packages of its base."""
    try:
        with open(os.path.join(prefix, _CONFIG), encoding="utf-8") as config:
            pairs = [line.partition("=") for line in config]
    except (OSError, UnicodeDecodeError):
        return False
    return any(key.strip() == _INHERITS and value.strip() == "true" for key, _, value in pairs)


def _link(target, path):
    try:
        os.symlink(target, path)
    except FileExistsError:
        # A worker that was lost has made it.
        pass


def _write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
