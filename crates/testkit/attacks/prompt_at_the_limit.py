# name: end the keeper with a prompt whose header is as long as a header may be
# line: 68
# finding: 6
# session: own
# runs: in the worker
# judged: by its end
from attack import padded, refused, say_to_keeper

say_to_keeper((padded(b'{"kind":"stdin_wait","turn":2,"prompt":"', b'"}'), b""))
refused("the keeper goes on")
