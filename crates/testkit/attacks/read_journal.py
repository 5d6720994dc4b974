# name: read the node's journal, with what other sessions said
# line: 50
from attack import STAGE, below, secret_at, try_each


def searched():
    for path in below(STAGE["state"]):
        if found := secret_at(path):
            return f"{path}: {found}"


try_each([("the state directory", searched)])
