"""Makes a wheel that has one program and no Python code: `make_wheel.py PROGRAM VERSION TAG DIRECTORY`.

The wheel is the package `windlass-bin`, on which the Python SDK depends. pip puts the program where it puts scripts.
The same program gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

NAME = "windlass_bin"

METADATA = """\
Metadata-Version: 2.1
Name: windlass-bin
Version: {version}
Summary: The program of Windlass: persistent, confined sessions of code for agents
License: MIT OR Apache-2.0
Classifier: Operating System :: POSIX :: Linux
Requires-Python: >=3.9
"""

WHEEL = """\
Wheel-Version: 1.0
Generator: windlass
Root-Is-Purelib: false
Tag: py3-none-{tag}
"""

EXECUTABLE = 0o100755 << 16
PLAIN = 0o100644 << 16
#: The earliest time that a zip file can name.
TIME = (1980, 1, 1, 0, 0, 0)


def main() -> None:
    program, version, tag, directory = sys.argv[1:]
    info = f"{NAME}-{version}.dist-info"
    files = [
        (f"{NAME}-{version}.data/scripts/windlass", Path(program).read_bytes(), EXECUTABLE),
        (f"{info}/METADATA", METADATA.format(version=version).encode(), PLAIN),
        (f"{info}/WHEEL", WHEEL.format(tag=tag).encode(), PLAIN),
    ]
    record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content, _ in files)
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), PLAIN))
    wheel = Path(directory) / f"{NAME}-{version}-py3-none-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in files:
            entry = zipfile.ZipInfo(name, TIME)
            entry.external_attr = mode
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    print(wheel)


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


main()
