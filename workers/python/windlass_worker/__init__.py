"""The Windlass worker for Python: runs the turns of one session in this interpreter.

A keeper starts it with a protocol socket and three standard descriptors, sends it turns, and hears
from it what they printed, showed, asked and how they ended (protocol version 1). It uses the
standard library alone, and on the plain path very little of that: a session must start in
milliseconds, and whatever is imported here is paid by every session.

Nothing in this package confines the code it runs: that is the sandbox's work, outside.
"""
