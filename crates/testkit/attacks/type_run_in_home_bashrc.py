# name: append to .bashrc by `windlass run`, typed in the home
# line: 70
# finding: 8
# play: typed in the home
import os

try:
    with open(os.path.expanduser("~/.bashrc"), "a", encoding="utf-8") as file:
        file.write("# windlass-attack\n")
    print("through: wrote ~/.bashrc")
except OSError as error:
    print("refused:", error.strerror)
