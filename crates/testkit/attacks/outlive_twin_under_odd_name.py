# name: live on after the end of a twin, as a child whose name is not UTF-8
# line: 45
# play: end the twin
# runs: in the worker
from attack import planted, start_marked_child

start_marked_child(b"\xff\xfeodd")
planted("a child of the twin with an odd name")
