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

    pipe, process = stream._fid, os.getpid()
    os.set_blocking(pipe, False)
    write, flush = stream.write, stream.flush
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
                write(decoder.decode(data))

    def ordered_write(text):
        drain()
        return write(text)

    def ordered_flush():
        drain()
        flush()

    def watch():
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while True:
            poll.poll()
            drain()

    stream.write, stream.flush = ordered_write, ordered_flush
    threading.Thread(target=watch, name="windlass-output", daemon=True).start()


for _stream in (sys.stdout, sys.stderr):
    _take_over(_stream)
