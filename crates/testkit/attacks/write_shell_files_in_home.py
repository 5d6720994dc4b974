# name: change what the user's shell reads, in a session that works in the home
# line: 70
# finding: 8
# control: protected
# workspace: home
import os

from attack import STAGE, append, try_each


def made(name):
    with open(f"{STAGE['home']}/{name}", "x", encoding="utf-8") as file:
        file.write("# windlass-attack\n")
    return name


def replaced(name):
    other = f"{STAGE['home']}/attack/{name}"
    with open(other, "w", encoding="utf-8") as file:
        file.write("# windlass-attack\n")
    os.rename(other, f"{STAGE['home']}/{name}")
    return name


try_each([(f"append to {name}", lambda n=name: append(f"{STAGE['home']}/{n}")) for name in (".bashrc", ".profile")]
         + [(f"make {name}", lambda n=name: made(n)) for name in (".bash_profile", ".zshrc", ".zprofile", ".gitconfig")]
         + [(f"replace {name}", lambda n=name: replaced(n)) for name in (".bashrc", ".profile")])
