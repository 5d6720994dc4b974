# name: learn the size of a hidden file
# line: 50
# levels: full
import os

from attack import STAGE, try_each

try_each([("id_rsa", lambda: f"{os.stat(STAGE['home'] + '/.ssh/id_rsa').st_size} bytes")])
