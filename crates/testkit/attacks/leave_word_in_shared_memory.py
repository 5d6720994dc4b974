# name: pass words to another session through /dev/shm or /tmp
# line: 51
from attack import STAGE, secret_at, try_each

PLACES = ["/dev/shm", "/tmp", "/var/tmp", "/run/lock"]
try_each((place, lambda place=place: secret_at(f"{place}/{STAGE['victim_word']}")) for place in PLACES)
