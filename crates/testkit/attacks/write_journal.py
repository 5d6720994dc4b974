# name: change or remove what the journal remembers
# line: 50
# judged: outside
import os

from attack import STAGE, append, try_each


def planted():
    os.close(os.open(f"{STAGE['state']}/planted", os.O_CREAT | os.O_WRONLY))
    return "a file in the state directory"


try_each([("a file", lambda: append(f"{STAGE['state']}/decoy.seg")), ("a new file", planted)])
