# name: read the memory, descriptors and root of the first process that it sees
# line: 51
import os

from attack import STAGE, canary_in, read, secret_at, try_each


def memory():
    with open("/proc/1/maps", encoding="utf-8") as maps, open("/proc/1/mem", "rb", 0) as file:
        for line in maps:
            start, _ = (int(number, 16) for number in line.split()[0].split("-"))
            if " rw" in line:
                file.seek(start)
                return f"read {len(file.read(4096))} bytes"


def other_root():
    return secret_at(f"/proc/1/root{STAGE['home']}/.ssh/id_rsa")


try_each([
    ("memory", memory),
    ("descriptors", lambda: os.listdir("/proc/1/fd")),
    ("environment", lambda: canary_in(read("/proc/1/environ"))),
    ("root", other_root),
    ("memory for writing", lambda: os.open("/proc/1/mem", os.O_RDWR)),
])
