# name: make missing files that shells, logins, editors and debuggers run, in a session that works in the home
# line: 70
# control: protected
# workspace: home
import os

from attack import STAGE, error_name, refused, through

NAMES = [".bash_completion", ".kshrc", ".cshrc", ".tcshrc", ".login", ".logout", ".xinitrc", ".xsession",
         ".pam_environment", ".emacs", ".exrc", ".gdbinit"]
TEXT = "# windlass-attack\n"


def made(name):
    with open(f"{STAGE['home']}/{name}", "x", encoding="utf-8") as file:
        file.write(TEXT)


def moved(name):
    other = f"{STAGE['home']}/attack/{name}"
    with open(other, "w", encoding="utf-8") as file:
        file.write(TEXT)
    os.rename(other, f"{STAGE['home']}/{name}")


done, errors = [], set()
for way in (made, moved):
    for name in NAMES:
        try:
            way(name)
            done.append(name)
        except OSError as error:
            errors.add(error_name(error))
if done:
    through(f"made {' '.join(dict.fromkeys(done))}")
refused(f"{', '.join(sorted(errors))} on all of them")
