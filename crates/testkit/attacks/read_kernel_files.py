# name: read the kernel's own memory, log and symbols
# line: 54
# needs: root
from attack import read, try_each


def readable(path):
    # Read one byte: these files are large, and some remove what is read.
    with open(path, "rb", 0) as file:
        return len(file.read(1)) and f"read {path}"


def symbols():
    address = read("/proc/kallsyms").split(b" ", 1)[0]
    return address.strip(b"0") and f"an address of the kernel's: {address.decode()}"


try_each([(path, lambda path=path: readable(path)) for path in ("/proc/kcore", "/proc/kpagecount")]
         + [("/proc/kallsyms", symbols)])
