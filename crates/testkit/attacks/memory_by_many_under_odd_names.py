# name: hold more memory than the limit, in many small processes whose names are not UTF-8
# line: 53
# session: own
# control: memory
# limits: memory_bytes=134217728
import os
import signal
import time

from attack import refused, set_process_name, through

LIMIT, EACH, PROCESSES = 128 << 20, 32 << 20, 10
LOOKED_S = 3
told, tell = os.pipe()
children = []
for _ in range(PROCESSES):
    child = os.fork()
    if child == 0:
        try:
            set_process_name(b"\xff\xfeodd")
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
# What looks at the memory every now and then has had the time to look.
time.sleep(LOOKED_S)
alive = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
for child in alive:
    os.kill(child, signal.SIGKILL)
held = len(alive) * EACH
if held > LIMIT:
    through(f"{len(alive)} processes hold {held >> 20} MiB")
refused(f"{len(alive)} of {PROCESSES} processes were left, with {held >> 20} MiB")
