# name: make files, directories, links and sockets outside
# line: 50
import os
import socket

from attack import STAGE, can_make_in, try_each

home = STAGE["home"]


def done(act, path, *more):
    act(path, *more)
    return path


def bind(path):
    socket.socket(socket.AF_UNIX).bind(path)


try_each([
    ("mkdir", lambda: done(os.mkdir, f"{home}/made")),
    ("mkfifo", lambda: done(os.mkfifo, f"{home}/made-fifo")),
    ("symlink", lambda: done(lambda path: os.symlink("/", path), f"{home}/made-link")),
    ("bind", lambda: done(bind, f"{home}/made.sock")),
    ("O_TMPFILE", lambda: can_make_in(home)),
])
