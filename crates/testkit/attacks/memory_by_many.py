# name: hold more memory than the limit, in many small processes
# line: 53
# session: own
# control: memory
# limits: memory_bytes=134217728
import os
import signal

from attack import refused, through

LIMIT, EACH, PROCESSES = 128 << 20, 32 << 20, 10
told, tell = os.pipe()
children = []
for _ in range(PROCESSES):
    child = os.fork()
    if child == 0:
        try:
            block = bytearray(os.urandom(4096) * (EACH // 4096))
            os.write(tell, b"x")
            os.close(tell)
            signal.pause()
        finally:
            os._exit(1)
    children.append(child)
os.close(tell)
# The end of the pipe: each has its memory, or was ended before.
while os.read(told, PROCESSES):
    pass
alive = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
for child in alive:
    os.kill(child, signal.SIGKILL)
held = len(alive) * EACH
if held > LIMIT:
    through(f"{len(alive)} processes hold {held >> 20} MiB")
refused(f"{len(alive)} of {PROCESSES} processes were left, with {held >> 20} MiB")
