"""Which turn is running, and which turn each thread belongs to.

Owns these two facts and a fence between them: a thread that writes as part of the current turn
finishes its write before that turn ends. Never writes anything itself.

A thread belongs to the turn that started it. A thread that another thread started belongs to that
thread's turn. A thread of an executor belongs to the turn that submitted its current work.
"""

import _thread
from _thread import allocate_lock, get_ident
from sys import modules


class Turns:
    def __init__(self):
        self.main = get_ident()
        # The running turn; None between turns.
        self.current = None
        # The last turn that began; 0 before the first.
        self.latest = 0
        # True in a child of the worker, which must not use the protocol.
        self.forked = False
        # Held by a thread that writes as part of the current turn, and when that turn ends.
        self.fence = allocate_lock()
        self._of_thread = {}

    def begin(self, turn):
        self.current = self.latest = turn

    def end(self):
        if self._of_thread:
            with self.fence:
                self.current = None
        else:
            self.current = None

    def of(self, thread):
        """The turn of a thread. A thread whose start was not seen belongs to the latest turn."""
        return self._of_thread.get(thread, self.latest)

    def enter_child(self):
        """After a fork: the parent's threads and locks are gone."""
        self.forked = True
        self.main = get_ident()
        self.fence = allocate_lock()
        self._of_thread.clear()

    def adopt(self):
        """This process is a twin, not a child, and has its own turns."""
        self.forked = False
        self.current = None
        self.latest = 0

    def watch_threads(self):
        """Record the turn of every thread that starts from now on."""
        for name in ("start_new_thread", "start_new", "start_joinable_thread"):
            start = getattr(_thread, name, None)
            if start is not None:
                watched = self._watched(start)
                setattr(_thread, name, watched)
                # If a .pth file imported `threading` earlier, it has its own references to these
                # functions.
                threading = modules.get("threading")
                if threading is not None and hasattr(threading, "_" + name):
                    setattr(threading, "_" + name, watched)

    def _watched(self, start):
        of_thread = self._of_thread

        def start_thread(function, *arguments, **options):
            turn = self.of(get_ident())

            def run(*arguments, **options):
                thread = get_ident()
                of_thread[thread] = turn
                try:
                    return function(*arguments, **options)
                finally:
                    of_thread.pop(thread, None)

            return start(run, *arguments, **options)

        start_thread.__name__ = start_thread.__qualname__ = start.__name__
        start_thread.__doc__ = start.__doc__
        return start_thread

    def watch_executors(self, module):
        """`concurrent.futures.thread` was imported: work counts for the turn that submitted it."""
        item = module._WorkItem
        create, run = item.__init__, item.run
        of_thread = self._of_thread

        def __init__(work, *arguments, **options):
            create(work, *arguments, **options)
            work.turn = self.of(get_ident())

        def run_for_turn(work, *arguments, **options):
            thread = get_ident()
            own = self.of(thread)
            of_thread[thread] = work.turn
            try:
                return run(work, *arguments, **options)
            finally:
                of_thread[thread] = own

        item.__init__, item.run = __init__, run_for_turn
