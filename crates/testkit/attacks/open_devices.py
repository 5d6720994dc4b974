# name: open devices of the machine
# line: 54
import glob
import os

from attack import try_each

PATTERNS = ["mem", "port", "kmsg", "kvm", "fuse", "loop*", "vd*", "sd*", "nvme*", "zram*", "dm-*", "uinput",
            "input/*", "cpu/*/msr", "hpet", "rtc*", "userfaultfd", "mapper/*", "btrfs-control",
            "autofs", "console", "tty[0-9]*", "ttyS*", "vcs*", "dri/*", "bus/usb/*/*"]
FIXED = [f"/dev/{name}" for name in ("mem", "kmsg", "kvm", "fuse", "loop0", "loop-control", "vda", "sda", "console")]
PATHS = FIXED + [path for pattern in PATTERNS for path in glob.glob(f"/dev/{pattern}")]


def opened(path):
    # Opening for reading is enough. Nothing is read.
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
    return f"opened {path}"


try_each((path, lambda path=path: opened(path)) for path in dict.fromkeys(PATHS))
