// name: mount file systems, in the old way and the new
// line: 54
#include "attack.h"

int main(void)
{
    mkdir("mounted", 0700);
    const char *kinds[] = {"tmpfs", "proc", "sysfs", "mqueue", "devpts", "ramfs"};
    for (int at = 0; at < 6; at++) {
        if (mount("none", "mounted", kinds[at], 0, NULL) == 0) {
            umount2("mounted", MNT_DETACH);
            through("mounted %s", kinds[at]);
        }
        note(kinds[at]);
    }
    int context = (int)syscall(SYS_fsopen, "tmpfs", 0);
    if (context >= 0)
        through("fsopen");
    note("fsopen");
    if (syscall(SYS_fspick, AT_FDCWD, "/", 0) >= 0)
        through("fspick");
    note("fspick");
    refused_all();
}
