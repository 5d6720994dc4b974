"""The Pyodide worker's own Python part: what differs from the native Python worker.

The rest is the native worker's package, `windlass_worker`, unchanged.
"""
