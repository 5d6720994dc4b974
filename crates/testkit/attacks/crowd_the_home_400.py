# name: keep sessions from starting, or end the node, by 400 entries in the home
# line: 68
# finding: 6
# play: outside
from attack import STAGE, wait_for_end

for number in range(400):
    with open(f"{STAGE['home']}/crowd-{number:05}-{'x' * 60}", "w", encoding="utf-8"):
        pass
print("planted: 400 entries", flush=True)
wait_for_end()
