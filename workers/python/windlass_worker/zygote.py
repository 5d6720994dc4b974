"""The zygote: a process with preloaded modules that forks workers.

Owns the steps between a keeper's request and the worker's own life, which is in `main`. Never runs
the session's code: a forked worker waits for its job, and confines itself before it serves. Never
has a second thread when it forks.

Descriptor 3 is the socket to the node; only the node holds its other end. On it the zygote reports
once that it is ready, and receives connections: one for each worker that a keeper needs. The zygote
has no address, so no other process can send it requests. A connection carries one request, with the
descriptors that the worker needs. The zygote sends no answer: the forked worker reports to the
keeper on a separate channel. A forked worker holds neither the node's socket nor any connection.
"""

import ctypes
import gc
import os
import sys
from _socket import AF_UNIX, CMSG_SPACE, MSG_DONTWAIT, SOCK_SEQPACKET, SOL_SOCKET, SCM_RIGHTS, socket
from _struct import Struct
from os import _exit
from select import POLLIN, poll
from time import perf_counter

from . import afresh, main
from .import_guard import ImportGuard
from .practice import practise

_NODE = 3
_LIBRARY = "libwindlass_confine.so"
# A module that the first fork of a live session needs.
_OF_TWINS = __package__ + ".twin"

_VERSION = 2
# Version, namespaces of the keeper to enter, namespaces of the worker to enter.
_REQUEST = Struct("<Iii")
_DESCRIPTORS_MAX = 6
# Most connections that wait for their request. Beyond that the oldest is closed; its keeper then
# starts the program instead.
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
    """The zygote's life: import the modules, report that it is ready, and fork on request.

    In a forked worker this function is also the worker's life, and returns at its end.
    """
    node = socket(AF_UNIX, SOCK_SEQPACKET, 0, _NODE)
    # PyDLL keeps the interpreter's lock during calls: one of the functions forks.
    library = ctypes.PyDLL(os.path.join(os.path.dirname(__file__), _LIBRARY))
    library.windlass_become_worker.argtypes = (
        [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p] + [ctypes.c_int] * 4
    )
    library.windlass_build_view.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
    began = perf_counter()
    with ImportGuard(_hear_roots(node)):
        missing = _import([_OF_TWINS, *preload])
    imported = perf_counter()
    worker = main.Worker()
    worker.note_packages(len(preload) - len(missing), began, imported)
    worker.prepare()
    worker.rehearse()
    library.windlass_warm()
    _stop_threads()
    gc.collect()
    # The collector never visits the objects that exist now, so their pages stay shared.
    gc.freeze()
    library.windlass_fill_gaps()
    practise(library, worker)
    _say(node, missing)
    connections = Connections(node)
    while True:
        descriptors, of_keeper, of_worker = connections.next_request()
        between = None
        # Only children enter a pid namespace, and every child forked here is for a keeper.
        if library.windlass_join(descriptors[0], _NEW_PIDS) == 0:
            of, spaces = descriptors[0], of_keeper & ~_NEW_PIDS
            if of_worker:
                of, spaces = descriptors[5], of_worker
            between = _fork(library, of, spaces, descriptors[1])
            if between == 0:
                connections.close()
                return worker.serve(_become_worker(library, worker, descriptors))
            _leave_pid_namespace(library)
        _close(descriptors)
        if between is not None:
            os.waitpid(between, 0)


class Connections:
    """The node's socket, and the connections received over it, by descriptor."""

    def __init__(self, node):
        self._node = node
        # In order of arrival.
        self._open = []
        self._ready = []
        self._poll = poll()
        self._poll.register(node, POLLIN)

    def next_request(self):
        """Wait for a request. Returns its descriptors, and the namespaces of the keeper and of the
        worker."""
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
        """Close all of them, in a forked worker."""
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
        """Read the only request of a connection and close it; None if the keeper is gone."""
        connection = socket(AF_UNIX, SOCK_SEQPACKET, 0, descriptor)
        try:
            data, descriptors = _receive(connection, MSG_DONTWAIT)
        except OSError:
            data, descriptors = b"", []
        finally:
            # Connections are kept as numbers: a socket object would close the number again in a
            # worker.
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
    """Directories that sessions can write to; None if the node does not know them."""
    received, descriptors = _receive(node)
    if received != _ROOTS or len(descriptors) != 1:
        raise RuntimeError("the node did not send the directories that sessions can write to")
    content = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
    _close(descriptors)
    word, *roots = content.split(b"\0")
    return [os.fsdecode(root) for root in roots] if word == b"known" else None


def _fork(library, of, spaces, channel):
    """Fork a worker into its namespaces. Returns 0 in the worker, else the child to wait for."""
    between = library.windlass_fork_worker(of, spaces, channel)
    if between >= 0:
        return between
    # Fallback: fork through an ordinary copy of this process.
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


def _leave_pid_namespace(library):
    """Leave the keeper's pid namespace, which may end. An ordinary user's zygote cannot, and keeps
    it until the next fork."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    library.windlass_join(own, _NEW_PIDS)
    os.close(own)


def _become_worker(library, worker, descriptors):
    """In the worker: wait for the job and enter the confinement. Returns the protocol's descriptor.
    """
    keeper, channel, kept, stdout, stderr = descriptors[:5]
    _close([keeper] + descriptors[5:])
    afresh.secrets()
    plan, cwd, environment = _take_job(library, worker, channel)
    if library.windlass_become_worker(plan, len(plan), cwd, channel, kept, stdout, stderr) != 0:
        _exit(126)
    afresh.environment(environment)
    return kept


def _take_job(library, worker, channel):
    """Wait for the job: the plan, the directory and the environment.

    The network namespace and a plan for building the view in advance may come first. Then the
    worker also pre-faults the pages that a first turn writes to.
    """
    connection = socket(AF_UNIX, SOCK_SEQPACKET, 0, os.dup(channel))
    while True:
        received, descriptors = _receive(connection)
        if not received or len(descriptors) != 1:
            # The keeper is gone, or no longer needs this worker.
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
    """Import each module. A failed import is left to the code that needs the module."""
    missing = []
    for name in names:
        try:
            __import__(name)
        except Exception as error:
            missing.append("%s: %s: %s" % (name, type(error).__name__, error))
    return missing


def _stop_threads():
    """Fork once, so that libraries stop their threads as they do at a fork, and check that they
    did."""
    child = os.fork()
    if child == 0:
        _exit(0)
    os.waitpid(child, 0)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError("%d threads run, and a fork would lose all but one" % threads)


def _say(node, missing):
    """Report to the node: one line per missing module, then the module search path."""
    places = [place for place in sys.path if place]
    text = "\n".join(["missing " + line for line in missing] + ["path " + path for path in places])
    node.send(("ready\n" + text).encode("utf-8", "backslashreplace")[:60000])
