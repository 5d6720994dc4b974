# name: read a secret through symbolic links, to it and to a directory above it
# line: 50
import os

from attack import STAGE, own_directory, secret_at, try_each

links = own_directory("links")
os.symlink(f"{STAGE['home']}/.ssh/id_rsa", f"{links}/file")
os.symlink(f"{STAGE['home']}/.ssh", f"{links}/directory")
os.symlink("/", f"{links}/root")
try_each([
    ("a link to the file", lambda: secret_at(f"{links}/file")),
    ("a link to its directory", lambda: secret_at(f"{links}/directory/id_rsa")),
    ("a link to the root", lambda: secret_at(f"{links}/root{STAGE['home']}/.ssh/id_rsa")),
])
