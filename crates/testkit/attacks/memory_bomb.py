# name: hold more memory than the limit
# line: 53
# session: own
# control: memory
# limits: memory_bytes=134217728
import os

from attack import refused, through

LIMIT, STEP, MOST = 128 << 20, 16 << 20, 320 << 20
told, tell = os.pipe()
child = os.fork()
if child == 0:
    held = []
    try:
        while len(held) * STEP < MOST:
            # Not zeros, because untouched zero pages cost no memory.
            held.append(bytearray(os.urandom(4096) * (STEP // 4096)))
            os.write(tell, b"x")
    except MemoryError:
        os._exit(1)
    os._exit(0)
os.close(tell)
held = 0
while os.read(told, 1):
    held += STEP
_, status = os.waitpid(child, 0)
if held <= LIMIT:
    refused(f"ended with {os.waitstatus_to_exitcode(status)} at {held >> 20} MiB")
through(f"held {held >> 20} MiB")
