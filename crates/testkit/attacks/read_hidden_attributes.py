# name: read the extended attributes of a hidden file
# line: 50
# levels: full
import os

from attack import STAGE, canary_in, try_each


def read():
    return canary_in(os.getxattr(f"{STAGE['home']}/.ssh/id_rsa", "user.secret"))


try_each([("getxattr", read)])
