# name: find a secret that the worker's memory was left with
# line: 55
# runs: in the worker
# session: own

from attack import CANARY, refused, through

# This module holds no secret itself, only the pattern.
REGION_BYTES_MAX = 256 * 1024 * 1024
with open("/proc/self/maps", encoding="utf-8") as maps:
    regions = [line.split() for line in maps]
searched = 0
with open("/proc/self/mem", "rb", 0) as memory:
    for region in regions:
        start, end = (int(number, 16) for number in region[0].split("-"))
        if not region[1].startswith("r") or end - start > REGION_BYTES_MAX or region[-1] in ("[vvar]", "[vsyscall]"):
            continue
        try:
            memory.seek(start)
            found = CANARY.search(memory.read(end - start))
        except (OSError, OverflowError):
            continue
        searched += end - start
        if found:
            through(f"{region[-1]} holds {found.group().decode()}")
refused(f"not in {searched >> 20} MiB of {len(regions)} regions")
