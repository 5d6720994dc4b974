# name: end the keeper with a display whose header is as long as a header may be
# line: 68
# finding: 6
# session: own
# runs: in the worker
# judged: by its end
from attack import padded, refused, say_to_keeper

say_to_keeper((padded(b'{"kind":"display","turn":2,"mime":"', b'"}'), b"x"),
              (padded(b'{"kind":"display","turn":2,"mime":"a/b","id":"', b'"}'), b"x"))
refused("the keeper goes on")
