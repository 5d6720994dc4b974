# name: plant a sitecustomize in the user's own site directory
# line: 50
# judged: outside
import os
import sys

from attack import STAGE, try_each

version = f"python{sys.version_info.major}.{sys.version_info.minor}"
place = f"{STAGE['home']}/.local/lib/{version}/site-packages"


def plant():
    os.makedirs(place, exist_ok=True)
    with open(f"{place}/usercustomize.py", "w", encoding="utf-8") as file:
        file.write("evil = True\n")
    return place


try_each([("usercustomize.py", plant)])
