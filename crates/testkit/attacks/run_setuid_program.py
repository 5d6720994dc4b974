# name: gain a user's rights from a setuid program
# line: 54
# needs: user
import os
import subprocess

from attack import refused, through

PROGRAMS = [path for path in ("/usr/bin/su", "/bin/su", "/usr/bin/newgrp") if os.path.exists(path)]
seen = []
for path in PROGRAMS:
    # It waits for a password that never comes. Meanwhile /proc shows its user ids.
    child = subprocess.Popen([path, "root"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    os.set_blocking(child.stdout.fileno(), True)
    said = child.stdout.read(9)
    try:
        with open(f"/proc/{child.pid}/status", encoding="utf-8") as status:
            uids = next(line.split()[1:] for line in status if line.startswith("Uid:"))
    except (OSError, StopIteration):
        uids = []
    child.kill()
    child.wait()
    if uids and uids[1] == "0" and os.getuid() != 0:
        through(f"{path} runs as user 0")
    seen.append(f"{os.path.basename(path)} said {said!r} as {uids[1] if uids else 'nobody'}")
refused("; ".join(seen) or "no such program")
