# name: start a windlass of its own with the node's directories
# line: 58
import os
import subprocess

from attack import STAGE, refused, through

environment = dict(os.environ, WINDLASS_RUNTIME_DIR=STAGE["runtime"], WINDLASS_STATE_DIR=STAGE["state"])
try:
    ran = subprocess.run([STAGE["program"], "ps"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, timeout=10)
except (OSError, subprocess.TimeoutExpired) as error:
    refused(type(error).__name__)
text = ran.stdout.decode(errors="replace").strip()
if STAGE["victim_session"] in text:
    through(f"windlass ps lists {STAGE['victim_session']}")
refused(text.splitlines()[0][:80] if text else f"exit {ran.returncode}")
