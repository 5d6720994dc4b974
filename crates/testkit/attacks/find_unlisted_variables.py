# name: find a variable that is on no allow-list
# line: 55
import os

from attack import STAGE, refused, through

LISTED = {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER", "TERM", "PAGER",
          "GIT_PAGER", "PIP_RETRIES", "PIP_DISABLE_PIP_VERSION_CHECK", "UV_OFFLINE", "NPM_CONFIG_FETCH_RETRIES",
          "CARGO_NET_RETRY", "VIRTUAL_ENV", "PWD", "OLDPWD", "SHLVL", "_", "MPLBACKEND",
          "XDG_CACHE_HOME", "MPLCONFIGDIR"}
PROXY = {"ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY"}
if STAGE["network"] == "hosts":
    LISTED |= PROXY | {name.lower() for name in PROXY}
# R sets these for its programs itself.
if STAGE["worker"] == "r":
    LISTED |= {"EDITOR", "LN_S", "MAKE", "SED", "TAR", "LD_LIBRARY_PATH"} | {name for name in os.environ if name.startswith(("R_", "_R_"))}
others = sorted(name for name in os.environ if name not in LISTED and not name.startswith(("WINDLASS_", "PYTHON")))
if others:
    through(", ".join(others))
refused("only what is listed")
