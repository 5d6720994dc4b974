# name: end the keeper with a tool call whose header is as long as a header may be
# line: 68
# finding: 6
# session: own
# runs: in the worker
# judged: by its end
from attack import padded, refused, say_to_keeper

say_to_keeper((padded(b'{"kind":"tool_call","turn":2,"call":1,"name":"', b'"}'), b"{}"))
refused("the keeper goes on")
