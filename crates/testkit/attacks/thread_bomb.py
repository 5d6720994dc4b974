# name: start more threads than the limit
# line: 53
# session: own
# control: process_count
# limits: processes=40
import threading

from attack import refused, through

# Some limits are checked at intervals, so they may be exceeded a little.
LIMIT, TRIES = 40, 160
threading.stack_size(64 * 1024)
end = threading.Event()
threads = []
stopped = None
for _ in range(TRIES):
    thread = threading.Thread(target=end.wait)
    try:
        thread.start()
    except RuntimeError as error:
        stopped = error
        break
    threads.append(thread)
end.set()
for thread in threads:
    thread.join()
if len(threads) <= 2 * LIMIT:
    refused(f"{stopped} after {len(threads)}")
through(f"{len(threads)} threads at once")
