# name: open devices that lead to a network
# line: 52
# networks: none hosts
import os

from attack import try_each

DEVICES = ["/dev/net/tun", "/dev/vsock", "/dev/vhost-net", "/dev/vhost-vsock", "/dev/ppp"]
try_each((path, lambda path=path: os.open(path, os.O_RDWR)) for path in DEVICES)
