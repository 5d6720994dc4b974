# name: open the machine's own settings for writing
# line: 50
# needs: root
from attack import can_make_in, opened_to_write, try_each

FILES = ["/etc/passwd", "/etc/ld.so.cache", "/etc/hosts", "/etc/profile"]
PLACES = ["/etc", "/etc/cron.d", "/var/spool", "/etc/profile.d"]
try_each([(path, lambda path=path: opened_to_write(path)) for path in FILES]
         + [(path, lambda path=path: can_make_in(path)) for path in PLACES])
