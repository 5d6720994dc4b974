# name: have a zygote run a planted standard library, named by the environment's pyvenv.cfg on the node's PATH
# line: 66
# finding: 5
# workspace: on the path
# play: again elsewhere
import os
import sysconfig

from attack import STAGE, planted, refused


def plant():
    venv = os.path.dirname(STAGE["path_entry"])
    real = sysconfig.get_path("stdlib")
    fake = os.path.abspath(f"fake/lib/{os.path.basename(real)}")
    os.makedirs("fake/bin", exist_ok=True)
    os.makedirs(f"{fake}/encodings", exist_ok=True)
    for place in ("", "/encodings"):
        for name in os.listdir(real + place):
            if name not in ("encodings", "__init__.py", "__pycache__") and not os.path.lexists(f"{fake}{place}/{name}"):
                os.symlink(f"{real}{place}/{name}", f"{fake}{place}/{name}")
    with open(f"{real}/encodings/__init__.py", encoding="utf-8") as file:
        text = file.read()
    marker = f"{STAGE['home']}/ran-by-a-zygote"
    with open(f"{fake}/encodings/__init__.py", "w", encoding="utf-8") as file:
        file.write(f"{text}\nimport posix\nposix.close(posix.open({marker!r}, posix.O_CREAT | posix.O_WRONLY))\n")
    with open(f"{venv}/new.cfg", "w", encoding="utf-8") as file:
        file.write(f"home = {os.path.abspath('fake/bin')}\n")
    os.rename(f"{venv}/new.cfg", f"{venv}/pyvenv.cfg")
    planted("pyvenv.cfg names another library")


if STAGE["part"] == "plant":
    try:
        plant()
    except OSError as error:
        refused(f"{error.strerror} on {error.filename}")
refused("it looks at nothing itself")
