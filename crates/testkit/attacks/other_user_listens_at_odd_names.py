# name: keep sessions from starting by sockets of another user with odd names
# line: 72
# finding: 7
# needs: root
# play: outside, as another user
import os

from attack import STAGE, listen_at, wait_for_end

os.chdir(STAGE["other"])
os.chmod(".", 0o755)
here = os.fsencode(os.getcwd())
kept = listen_at([here + b"/a\nb", here + b"/\xff\xfe", here + b"/ ", here + b"/(deleted)", here + b"/$(id)",
                  b"relative", here + b"/./dot", here + b"/gone", here + b"/moved"])
os.unlink("gone")
os.mkdir("gone")
os.rename("moved", "elsewhere")
os.symlink("/etc/passwd", "moved")
print("planted: sockets of user", os.getuid(), flush=True)
wait_for_end()
