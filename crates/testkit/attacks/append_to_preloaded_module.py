# name: have a zygote run code: a file of the workspace is a hard link to a module that the zygote preloads
# line: 66
# workspace: hard link
# play: again, preloaded
from attack import STAGE, append, planted, refused

CODE = f"""
with open("/proc/self/status") as status, open({STAGE["home"] + "/ran-by-a-zygote"!r}, "w") as ran:
    ran.write(next(line for line in status if line.startswith("Seccomp:")))
"""

if STAGE["part"] == "plant":
    try:
        append("linked.py", CODE)
    except OSError as error:
        refused(f"{error.strerror} on linked.py")
    planted("the module has more code")
refused("it looks at nothing itself")
