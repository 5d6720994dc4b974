"""What a first turn writes to, found out once for all workers of a zygote.

Owns the child that takes a turn for nobody. A page that workers share with their zygote is copied when
it is first written to, and a first turn writes to hundreds: a worker that waits can have them before.
"""

import os
from _socket import socketpair
from os import _exit

from . import afresh
from .wire import frame

_SOURCE = b"1 + 1"


def practise(library, worker):
    """Have a child be a worker that takes one turn, and learn which pages that wrote to."""
    ours, theirs = socketpair()
    # All is said before there is a child: what this process writes to meanwhile would look like the
    # child's.
    ours.send(frame(b'{"kind":"turn_start","turn":1}', _SOURCE) + frame(b'{"kind":"shutdown"}'))
    noted = os.memfd_create("windlass-pages")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ours.close()
            afresh.secrets()
            afresh.environment([name + b"=" + value for name, value in os.environb.items()])
            worker.serve(theirs.detach())
            status = library.windlass_note_pages(noted)
        finally:
            _exit(status)
    _, status = os.waitpid(child, 0)
    # Without it a first turn takes longer, and is the same.
    if status == 0:
        library.windlass_learn_pages(noted)
    os.close(noted)
    ours.close()
    theirs.close()
