"""Measures Jupyter for `cargo xtask bench --peers`. Prints one JSON object with the samples of each figure."""

import json
import sys
import time

from jupyter_client.manager import KernelManager

ROUNDS = int(sys.argv[1])
STARTS = max(3, ROUNDS // 50)


def start():
    manager = KernelManager()
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready()
    return manager, client


def run(client, code):
    client.execute_interactive(code, output_hook=lambda message: None, timeout=60)


def pss_mib(pid):
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        for line in rollup:
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024


def since(started):
    return (time.perf_counter() - started) * 1000


def first_answer():
    started = time.perf_counter()
    manager, client = start()
    run(client, "1+1")
    took = since(started)
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    return took


def interrupt(manager, client):
    client.execute("import time; print('go'); time.sleep(60)")
    while client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
        pass
    started = time.perf_counter()
    manager.interrupt_kernel()
    while True:
        message = client.get_iopub_msg(timeout=60)
        state = message["content"].get("execution_state")
        if message["msg_type"] == "status" and state == "idle":
            return since(started)


def main():
    first = [first_answer() for _ in range(STARTS)]
    manager, client = start()
    size = pss_mib(manager.provisioner.pid)
    warm = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        run(client, "1+1")
        warm.append(since(started))
    interrupts = [interrupt(manager, client) for _ in range(STARTS)]
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    print(
        json.dumps(
            {
                "warm_turn": warm,
                "first_answer": first,
                "interrupt_sleep": interrupts,
                "session_mib": [size],
            }
        )
    )


main()
