"""Top-level `await`: one event loop for all turns, and no task that outlives its turn.

Owns the loop. Never imports `asyncio` before a turn awaits something.
"""

# How long cancelled tasks may take to end. After that the loop is abandoned with them.
CANCEL_WAIT_S = 2.0

_loop = None


def run(coroutine):
    """Run a turn's coroutine to its end on the session's loop."""
    global _loop
    import asyncio

    if _loop is None or _loop.is_closed():
        _loop = asyncio.new_event_loop()
    # `asyncio.run` in an earlier turn has unset it.
    asyncio.set_event_loop(_loop)
    return _loop.run_until_complete(coroutine)


def has_loop():
    return _loop is not None


def current():
    """The loop, if there is one."""
    return _loop


def cancel_tasks():
    """Cancel the tasks that the turn left running, and let them end."""
    global _loop
    import asyncio

    loop, _loop = _loop, None
    if loop.is_closed():
        return
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        # If a task does not end, its loop is abandoned: no warning is needed.
        task._log_destroy_pending = False
        task.cancel()
    if tasks:
        waiting = loop.create_task(asyncio.wait(tasks, timeout=CANCEL_WAIT_S))
        waiting._log_destroy_pending = False
        while not waiting.done():
            try:
                loop.run_until_complete(waiting)
            except (KeyboardInterrupt, SystemExit) as error:
                # An interrupt of one task also ends each task that waits for it, and stops the loop each time.
                if not any(_has_ended_with(task, error) for task in tasks):
                    raise
        _, pending = waiting.result()
        if pending:
            return
    _loop = loop


def _has_ended_with(task, error):
    return task.done() and not task.cancelled() and task.exception() is error


def leave_loop():
    """Forget the loop. In a forked child it belongs to the parent."""
    global _loop
    _loop = None
