"""HTTP requests, name lookups and programs, run by the client that serves them for this session.

Owns the replaced parts of `urllib.request`, `socket`, `subprocess` and `pyodide.http`. Without a
client that serves them, each raises PermissionError.
"""


def install(catalogue):
    pass
