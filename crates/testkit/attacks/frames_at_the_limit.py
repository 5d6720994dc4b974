# name: end the keeper with frames of the greatest and the smallest size
# line: 68
# finding: 6
# session: own
# runs: in the worker
# judged: by its end
from attack import padded, refused, say_to_keeper

output = b'{"kind":"output","turn":2,"stream":"stdout"}'
say_to_keeper((output, b"\n" * (262144 - 4 - len(output))), (output, b""),
              (padded(b'{"kind":"output","turn":2,"stream":"stdout","more":"', b'"}'), b"\n" * (262144 - 4 - 65536)))
refused("the keeper goes on")
