# name: hold more memory than the limit, in many small processes
# line: 53
# session: own
# control: memory
# limits: memory_bytes=134217728
from attack import hold_memory_in_many

hold_memory_in_many(128 << 20, looked_s=3)
