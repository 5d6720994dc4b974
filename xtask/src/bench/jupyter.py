"""Measures a Jupyter kernel for `cargo xtask bench`. The argument is a JSON object: the name of the kernel, the
code of its turns, and how often each is run. Prints one JSON object with the samples of each figure, or with
the key `missing` if there is no such kernel."""

import contextlib
import json
import sys
import time

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.manager import KernelManager

ASKED = json.loads(sys.argv[1])

# A turn that ends later has slept to its end.
OBEYED_WITHIN_MS = 30_000


@contextlib.contextmanager
def kernel():
    """A kernel that ends with the block, also after an error: it holds the output of this script open."""
    manager = KernelManager(kernel_name=ASKED["kernel"])
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(client):
    started = time.perf_counter()
    reply = client.execute_interactive(ASKED["code"], output_hook=lambda message: None, timeout=60)
    took = since(started)
    if reply["content"]["status"] != "ok":
        raise RuntimeError(f"the kernel answered {reply['content']}")
    return took


def pss_mib(pid):
    """The memory of a process and of all processes below it."""
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        below = sum(pss_mib(child) for child in children.read().split())
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        for line in rollup:
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024 + below
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no line Pss")


def since(started):
    return (time.perf_counter() - started) * 1000


def first_answer():
    started = time.perf_counter()
    with kernel() as (manager, client):
        run(client)
        took = since(started)
        return took, pss_mib(manager.provisioner.pid)


def interrupts(manager, client, code):
    return [interrupt(manager, client, code) for _ in range(ASKED["interrupts"])] if code else []


def interrupt(manager, client, code):
    turn = client.execute(code)
    wait_for(client, turn, lambda message: message["msg_type"] == "stream")
    started = time.perf_counter()
    manager.interrupt_kernel()
    wait_for(client, turn, lambda message: message["content"].get("execution_state") == "idle")
    took = since(started)
    if took > OBEYED_WITHIN_MS:
        raise RuntimeError(f"the kernel ran {code!r} for {took} ms after an interrupt")
    return took


def wait_for(client, turn, wanted):
    """Waits for a message of this turn. A request for an interrupt has messages of its own."""
    while True:
        message = client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") == turn and wanted(message):
            return


def main():
    try:
        KernelSpecManager().get_kernel_spec(ASKED["kernel"])
    except NoSuchKernel as error:
        print(json.dumps({"missing": str(error)}))
        return
    first = [first_answer() for _ in range(ASKED["starts"])]
    with kernel() as (manager, client):
        for _ in range(ASKED["warm_ups"]):
            run(client)
        warm = [run(client) for _ in range(ASKED["turns"])]
        sleep = interrupts(manager, client, ASKED["sleep"])
        busy = interrupts(manager, client, ASKED["busy"])
    print(
        json.dumps(
            {
                "warm_turn": warm,
                "first_answer": [took for took, _ in first],
                "session_mib": [size for _, size in first],
                "interrupt_sleep": sleep,
                "interrupt_busy": busy,
            }
        )
    )


main()
