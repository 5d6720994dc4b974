"""Standard output and standard error of ipykernel: everything in the order in which it was written.

ipykernel reads file descriptors 1 and 2 through a pipe, in a thread, and copies them to where they
led before: the worker's raw pipes. Everything would be shown twice, and in any order. Here the pipe is
read before each write and each flush of the stream too, and nothing is copied.
"""

import codecs
import os
import select
import sys
import threading

_READ_BYTES_MAX = 65536


def _take_over(stream):
    if not getattr(stream, "_should_watch", False):
        return
    stream._should_watch = False
    os.write(stream._original_stdstream_fd, b"\0")  # wakes ipykernel's thread, which then ends
    stream.watch_fd_thread.join()

    plain = type(stream)
    pipe, process = stream._fid, os.getpid()
    os.set_blocking(pipe, False)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    lock = threading.RLock()

    def drain():
        if os.getpid() != process:
            return  # A forked child must not take its parent's output.
        with lock:
            while True:
                try:
                    data = os.read(pipe, _READ_BYTES_MAX)
                except BlockingIOError:
                    return
                plain.write(stream, decoder.decode(data))

    # IPython sets an attribute `write` of the stream in each cell and restores it afterwards.
    vars(stream).pop("write", None)

    class OrderedStream(plain):
        def write(self, text):
            drain()
            return plain.write(self, text)

        def flush(self):
            drain()
            plain.flush(self)

    def watch():
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while True:
            poll.poll()
            drain()

    stream.__class__ = OrderedStream
    threading.Thread(target=watch, name="windlass-output", daemon=True).start()


def _follow_threads(streams):
    """What a thread prints belongs to the turn that started the thread."""
    start = threading.Thread.start

    def start_in_turn(thread):
        headers, run = [stream.parent_header for stream in streams], thread.run

        def run_in_turn():
            for stream, header in zip(streams, headers):
                stream._parent_header.set(header)
            run()

        thread.run = run_in_turn
        start(thread)

    threading.Thread.start = start_in_turn


def take_over():
    """Run this outside of a cell, because IPython restores the streams' `write` at its end."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if hasattr(stream, "_parent_header")]
    for stream in streams:
        _take_over(stream)
    _follow_threads(streams)
