# name: raise a limit that is set
# line: 53
# session: own
# limits: open_files=64 file_bytes=1048576
import resource

from attack import try_each


def raised(which, name):
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY:
        return f"{name} has no limit"
    resource.setrlimit(which, (hard + 1, hard + 1))
    return f"{name} raised to {hard + 1}"


try_each([("files", lambda: raised(resource.RLIMIT_NOFILE, "files")),
          ("file size", lambda: raised(resource.RLIMIT_FSIZE, "file size"))])
