"""Finds the memory pages that a first turn writes to, once for all workers of a zygote.

Owns a throwaway child that runs one turn and records which pages it dirtied. A page that workers
share with their zygote is copied at the first write, and a first turn writes to hundreds. A pooled
worker can pre-fault them.
"""

import os
from _socket import socketpair
from os import _exit

from . import afresh
from .wire import frame

_SOURCE = b"1 + 1"


def practise(library, worker):
    """Run one turn in a child worker, and record the pages that it wrote to."""
    ours, theirs = socketpair()
    # Send everything before the fork: pages that this process writes to later would look like the
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
    # Without the record a first turn is slower, and works the same.
    if status == 0:
        library.windlass_learn_pages(noted)
    os.close(noted)
    ours.close()
    theirs.close()
