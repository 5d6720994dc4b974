# name: hold more memory than the limit, in many small processes whose names are not UTF-8
# line: 53
# session: own
# control: memory
# limits: memory_bytes=134217728
from attack import hold_memory_in_many

# Without cgroups the keeper measures memory at intervals: within 3 s it measures at least once.
hold_memory_in_many(128 << 20, name=b"\xff\xfeodd", looked_s=3)
