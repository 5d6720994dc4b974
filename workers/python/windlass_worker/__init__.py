"""The Windlass worker for Python: runs the turns of one session in this interpreter.

A keeper starts it with a protocol socket and three standard descriptors, and sends it turns. The
worker reports their output, displays, input requests and outcomes (protocol version 1). It uses only
the standard library, and very little of it on the common path: a session must start in milliseconds,
and every import here costs every session time.

Nothing in this package confines the code that it runs. The sandbox around it does.
"""
