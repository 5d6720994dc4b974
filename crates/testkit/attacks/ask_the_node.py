# name: ask the node over its socket, as a client would
# line: 58
import os
import socket

from attack import STAGE, own_directory, try_each


def asked(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(5)
        one.connect(path)
        one.sendall(b"GET /v1/sessions HTTP/1.1\r\nhost: windlass\r\nwindlass-api: 1.0\r\nconnection: close\r\n\r\n")
        return one.recv(4096).split(b"\r\n", 1)[0].decode()


def by_link():
    links = own_directory("links")
    os.symlink(STAGE["node_socket"], f"{links}/node")
    return asked(f"{links}/node")


try_each([
    ("its socket", lambda: asked(STAGE["node_socket"])),
    ("by /proc/self/root", lambda: asked(f"/proc/self/root{STAGE['node_socket']}")),
    ("by the keeper's root", lambda: asked(f"/proc/{STAGE['keeper_pid']}/root{STAGE['node_socket']}")),
    ("a link", by_link),
])
