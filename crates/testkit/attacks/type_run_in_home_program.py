# name: replace a program below ~/.cargo/bin by `windlass run`, typed in the home
# line: 70
# finding: 8
# play: typed in the home
import os

try:
    with open(os.path.expanduser("~/.cargo/bin/tool"), "a", encoding="utf-8") as file:
        file.write("# windlass-attack\n")
    print("through: wrote ~/.cargo/bin/tool")
except OSError as error:
    print("refused:", error.strerror)
