# name: end the keeper with the greatest numbers of turns and calls
# line: 68
# finding: 6
# session: own
# runs: in the worker
# judged: by its end
from attack import refused, say_to_keeper

most = b"18446744073709551615"
say_to_keeper((b'{"kind":"output","turn":' + most + b',"stream":"stdout"}', b"x"),
              (b'{"kind":"tool_call","turn":2,"name":"f","call":' + most + b"}", b"{}"),
              (b'{"kind":"tool_call","turn":2,"name":"f","call":1,"deadline_ms":' + most + b"}", b"{}"),
              (b'{"kind":"tool_cancel","turn":2,"call":' + most + b"}", b""))
refused("the keeper goes on")
