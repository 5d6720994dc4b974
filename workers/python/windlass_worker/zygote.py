"""A process that has its modules already, and forks workers.

Owns the order of things between a keeper's request and the worker's own life, which `main` has.
Never runs the session's code: what is forked waits for its job first, and confines itself before it
is a worker. Never has a second thread when it forks.

Descriptor 3 is the socket to its node, whose other end only the node holds. There it says once that it
is ready, and there it gets connections: one for each worker that a keeper is to have. It has no
address, so nobody else can ask it for anything. On a connection comes one request, with the descriptors
that the worker needs. It answers nothing: the keeper hears from what was forked, on a channel of its
own. What is forked holds neither the node's socket nor any connection.
"""

import ctypes
import gc
import os
import sys
from _socket import AF_UNIX, CMSG_SPACE, MSG_DONTWAIT, SOCK_SEQPACKET, SOL_SOCKET, SCM_RIGHTS, socket
from _struct import Struct
from os import _exit
from select import POLLIN, poll

from . import afresh, main
from .import_guard import ImportGuard
from .practice import practise

_NODE = 3
_LIBRARY = "libwindlass_confine.so"
# What the first fork of a live session would have to import.
_OF_TWINS = __package__ + ".twin"

_VERSION = 2
# Version, the keeper's namespaces to enter, those of the worker.
_REQUEST = Struct("<Iii")
_DESCRIPTORS_MAX = 6
# Connections that wait for their request. With more, the oldest is closed: its keeper runs the program.
_CONNECTIONS_MAX = 256
_ROOM = CMSG_SPACE(4 * _DESCRIPTORS_MAX)
_NEW_PIDS = 0x20000000
_NEW_NETWORK = 0x40000000
_ROOTS = b"R"
_CONNECTION = b"C"
_JOB = b"J"
_NETWORK = b"N"
_BUILT = b"B"
_LENGTH = Struct("<I")


def start(preload):
    """The whole life: import what is to be there, say so, and fork whenever asked.

    In a worker this is that worker's life, and returns at its end.
    """
    node = socket(AF_UNIX, SOCK_SEQPACKET, 0, _NODE)
    # The interpreter's lock is held in its functions: one of them forks.
    library = ctypes.PyDLL(os.path.join(os.path.dirname(__file__), _LIBRARY))
    library.windlass_become_worker.argtypes = (
        [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p] + [ctypes.c_int] * 4
    )
    library.windlass_build_view.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
    with ImportGuard(_hear_roots(node)):
        missing = _import([_OF_TWINS, *preload])
    worker = main.Worker()
    worker.prepare()
    worker.rehearse()
    library.windlass_warm()
    _stop_threads()
    gc.collect()
    # What is here now is never looked at by the collector again: its pages stay shared.
    gc.freeze()
    library.windlass_fill_gaps()
    practise(library, worker)
    _say(node, missing)
    connections = Connections(node)
    while True:
        descriptors, of_keeper, of_worker = connections.next_request()
        between = None
        # Only children enter a pid namespace, and all that are forked here are for a keeper.
        if library.windlass_join(descriptors[0], _NEW_PIDS) == 0:
            of, spaces = descriptors[0], of_keeper & ~_NEW_PIDS
            if of_worker:
                of, spaces = descriptors[5], of_worker
            between = _fork(library, of, spaces, descriptors[1])
            if between == 0:
                connections.close()
                return worker.serve(_become_worker(library, worker, descriptors))
            _let_go(library)
        _close(descriptors)
        if between is not None:
            os.waitpid(between, 0)


class Connections:
    """The node's socket, and the connections that came over it, by their descriptors."""

    def __init__(self, node):
        self._node = node
        # In the order in which they came.
        self._open = []
        self._ready = []
        self._poll = poll()
        self._poll.register(node, POLLIN)

    def next_request(self):
        """Wait for a request: its descriptors, the keeper's namespaces to enter, those of the worker."""
        while True:
            while self._ready:
                descriptor = self._ready.pop()
                if descriptor in self._open:
                    request = self._take(descriptor)
                    if request is not None:
                        return request
            for descriptor, _event in self._poll.poll():
                if descriptor == _NODE:
                    self._accept()
                else:
                    self._ready.append(descriptor)

    def close(self):
        """In what was forked: hold none of them."""
        self._node.close()
        _close(self._open)
        self._open = self._ready = []

    def _accept(self):
        data, descriptors = _receive(self._node)
        if not data:
            # The node is gone.
            _exit(0)
        if data != _CONNECTION or len(descriptors) != 1:
            return _close(descriptors)
        if len(self._open) == _CONNECTIONS_MAX:
            self._drop(self._open[0])
        self._open.append(descriptors[0])
        self._poll.register(descriptors[0], POLLIN)

    def _take(self, descriptor):
        """The one request of a connection, which is over then; none if its keeper is gone."""
        connection = socket(AF_UNIX, SOCK_SEQPACKET, 0, descriptor)
        try:
            data, descriptors = _receive(connection, MSG_DONTWAIT)
        except OSError:
            data, descriptors = b"", []
        finally:
            # Connections are kept as numbers: an object would close its number again in a worker.
            connection.detach()
        self._drop(descriptor)
        if len(data) == _REQUEST.size and len(descriptors) >= 5:
            version, of_keeper, of_worker = _REQUEST.unpack(data)
            if version == _VERSION and (len(descriptors) == 6 or not of_worker):
                return descriptors, of_keeper, of_worker
        _close(descriptors)
        return None

    def _drop(self, descriptor):
        self._open.remove(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)


def _hear_roots(node):
    """Directories that sessions can write, or none where the node does not know them."""
    received, descriptors = _receive(node)
    if received != _ROOTS or len(descriptors) != 1:
        raise RuntimeError("the node did not say what sessions can write")
    content = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
    _close(descriptors)
    word, *roots = content.split(b"\0")
    return [os.fsdecode(root) for root in roots] if word == b"known" else None


def _fork(library, of, spaces, channel):
    """Fork a worker into its namespaces; 0 in the worker, else what is to be waited for."""
    between = library.windlass_fork_worker(of, spaces, channel)
    if between >= 0:
        return between
    # Through a copy of this process, where it cannot be done through one that is none.
    between = os.fork()
    if between != 0:
        return between
    if library.windlass_join(of, spaces) != 0:
        _exit(1)
    worker = os.fork()
    if worker != 0:
        library.windlass_say_worker(channel, worker)
        _exit(0)
    return 0


def _let_go(library):
    """Hold no pid namespace of a keeper, which may end. An ordinary user does, until the next fork."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    library.windlass_join(own, _NEW_PIDS)
    os.close(own)


def _become_worker(library, worker, descriptors):
    """In the worker: wait for the job, and be confined; the protocol's descriptor."""
    keeper, channel, kept, stdout, stderr = descriptors[:5]
    _close([keeper] + descriptors[5:])
    afresh.secrets()
    plan, cwd, environment = _take_job(library, worker, channel)
    if library.windlass_become_worker(plan, len(plan), cwd, channel, kept, stdout, stderr) != 0:
        _exit(126)
    afresh.environment(environment)
    return kept


def _take_job(library, worker, channel):
    """Wait for the job: the plan, the directory, and the environment.

    Before it may come the network namespace, which is made meanwhile, and a plan whose view is built
    ahead. Then there is time, too, to have all that a first turn writes to.
    """
    connection = socket(AF_UNIX, SOCK_SEQPACKET, 0, os.dup(channel))
    while True:
        received, descriptors = _receive(connection)
        if not received or len(descriptors) != 1:
            # The keeper is gone, or wants nobody any more.
            _exit(0)
        if received == _NETWORK:
            if library.windlass_join(descriptors[0], _NEW_NETWORK) != 0:
                _exit(126)
            os.close(descriptors[0])
            continue
        content = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
        os.close(descriptors[0])
        if received == _JOB:
            break
        if library.windlass_build_view(content, len(content), channel) != 0:
            _exit(126)
        worker.rehearse()
        library.windlass_have_pages()
        connection.send(_BUILT)
    connection.close()
    size = 4 + _LENGTH.unpack_from(content)[0]
    cwd, *environment = content[size:].split(b"\0")
    return content[4:size], cwd, environment


def _receive(connection, flags=0):
    data, ancillary, _flags, _from = connection.recvmsg(64, _ROOM, flags)
    descriptors = []
    for level, kind, content in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            for (descriptor,) in Struct("=i").iter_unpack(content[: len(content) // 4 * 4]):
                descriptors.append(descriptor)
    return data, descriptors


def _close(descriptors):
    for descriptor in descriptors:
        os.close(descriptor)


def _import(names):
    """Import each; what cannot be is left to the code that will ask for it."""
    missing = []
    for name in names:
        try:
            __import__(name)
        except Exception as error:
            missing.append("%s: %s: %s" % (name, type(error).__name__, error))
    return missing


def _stop_threads():
    """Have libraries stop their threads, as they do at a fork, and see that they did."""
    child = os.fork()
    if child == 0:
        _exit(0)
    os.waitpid(child, 0)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError("%d threads run: what they do cannot be forked" % threads)


def _say(node, missing):
    """Tell the node: a first line for each module that is missing, then where modules are found."""
    places = [place for place in sys.path if place]
    text = "\n".join(["missing " + line for line in missing] + ["path " + path for path in places])
    node.send(("ready\n" + text).encode("utf-8", "backslashreplace")[:60000])
