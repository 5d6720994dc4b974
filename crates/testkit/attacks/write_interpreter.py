# name: change what the interpreter runs first
# line: 50
# needs: root
import os
import site
import sysconfig

from attack import can_make_in, opened_to_write, try_each

PLACES = [*site.getsitepackages(), sysconfig.get_paths()["stdlib"], "/etc/python3"]
try_each([(place, lambda place=place: can_make_in(place)) for place in PLACES]
         + [("os.py", lambda: opened_to_write(os.__file__))])
