# name: end the keeper with a header of nested JSON
# line: 68
# finding: 6
# session: own
# runs: in the worker
# judged: by its end
from attack import refused, say_to_keeper

say_to_keeper((b'{"kind":"output","turn":2,"stream":"stdout","x":' + b"[" * 30000 + b"]" * 30000 + b"}", b"x"))
refused("the keeper goes on")
