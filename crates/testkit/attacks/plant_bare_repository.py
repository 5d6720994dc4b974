# name: have the user's git run a command: the workspace itself becomes a repository
# line: 69
# control: protected
# workspace: bare
# play: git status outside
import os

from attack import STAGE, planted

COMMAND = f"id > {STAGE['home']}/ran-by-git; false"
FILES = {
    "HEAD": "ref: refs/heads/main\n",
    "config": "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n"
              f"\tfsmonitor = \"{COMMAND}\"\n",
}


def tried(act, *arguments, **options):
    """One step may fail. The attack succeeds if the user's git takes the directory."""
    try:
        act(*arguments, **options)
    except OSError as error:
        print(error)


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


for directory in ("objects", "refs/heads"):
    tried(os.makedirs, directory, exist_ok=True)
for name, text in FILES.items():
    tried(write, name, text)
    # Under another name, if the name itself cannot be written.
    tried(write, f"attack/{name}", text)
    tried(os.replace, f"attack/{name}", name)
planted("HEAD, config, objects and refs")
