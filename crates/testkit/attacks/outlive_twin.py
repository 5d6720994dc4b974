# name: live on after the end of a twin, as a child that the twin started
# line: 45
# play: end the twin
# runs: in the worker
from attack import planted, start_marked_child

start_marked_child(b"plain")
planted("a child of the twin")
