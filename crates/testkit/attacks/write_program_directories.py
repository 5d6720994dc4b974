# name: make a program in a directory of PATH
# line: 50
# needs: root
import os

from attack import can_make_in, opened_to_write, try_each

PLACES = [place for place in os.environ["PATH"].split(":") + ["/usr/local/lib", "/usr/lib"] if place]
try_each([(place, lambda place=place: can_make_in(place)) for place in PLACES]
         + [("/usr/bin/env", lambda: opened_to_write("/usr/bin/env"))])
