# name: change the worker's own program for the sessions to come
# line: 50
# runs: in the worker
import os
import sys

from attack import can_make_in, opened_to_write, try_each

files = [module.__file__ for name, module in list(sys.modules.items())
         if name.startswith("windlass_worker") and getattr(module, "__file__", None)]
try_each([(os.path.basename(path), lambda path=path: opened_to_write(path)) for path in files]
         + [("its directory", lambda: can_make_in(os.path.dirname(files[0])))])
