# name: signal every process there is, and whole groups
# line: 51
import os
import signal

from attack import STAGE, refused, through

# Ignored by default, so it harms nothing. The host's process records it, and the stage checks that.
signal.signal(signal.SIGURG, signal.SIG_IGN)
told = []
for target in (-1, 0, -STAGE["host_number"], -STAGE["node_number"], -STAGE["keeper_number"]):
    try:
        os.kill(target, signal.SIGURG)
        told.append("nobody outside")
        if target not in (-1, 0):
            through(f"signalled the group {target}")
    except OSError as error:
        told.append(os.strerror(error.errno))
refused(", ".join(sorted(set(told))))
