# name: have the kernel signal another process when a pipe of ours is ready
# line: 51
import fcntl
import os
import signal

from attack import STAGE, refused, through

F_SETSIG = 10
reader, writer = os.pipe()
errors = []
for key in ("host_number", "keeper_number"):
    try:
        fcntl.fcntl(reader, F_SETSIG, signal.SIGURG)
        fcntl.fcntl(reader, fcntl.F_SETOWN, STAGE[key])
        if fcntl.fcntl(reader, fcntl.F_GETOWN) != STAGE[key]:
            raise ProcessLookupError(3, "it is not the owner")
        flags = fcntl.fcntl(reader, fcntl.F_GETFL)
        fcntl.fcntl(reader, fcntl.F_SETFL, flags | os.O_ASYNC)
        os.write(writer, b"x")
        errors.append(f"the kernel took {key}")
    except OSError as error:
        errors.append(os.strerror(error.errno))
# The stage checks from outside whether a signal arrived.
refused("; ".join(errors))
