# name: open the kernel's settings for writing
# line: 54
# needs: root
from attack import opened_to_write, try_each

PATHS = ["/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches",
         "/proc/sys/kernel/modprobe", "/proc/sys/net/ipv4/ip_forward", "/sys/power/state",
         "/sys/kernel/uevent_helper", "/sys/kernel/profiling", "/sys/block/vda/uevent"]
try_each((path, lambda path=path: opened_to_write(path)) for path in PATHS)
