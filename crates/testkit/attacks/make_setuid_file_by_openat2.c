// name: make a file with the set-user-id bit by openat2, whose arguments a filter cannot see
// line: 54
// finding: 9
#include "attack.h"
#include <linux/openat2.h>

int main(void)
{
    struct open_how how = {.flags = O_CREAT | O_WRONLY, .mode = 06755};
    struct stat about;
    umask(0);
    if (syscall(SYS_openat2, AT_FDCWD, "setuid-made", &how, sizeof how) < 0)
        refused_on("openat2");
    int kept = stat("setuid-made", &about) == 0 ? about.st_mode : 0;
    unlink("setuid-made");
    if (kept & (S_ISUID | S_ISGID))
        through("mode %o", kept & 07777);
    refused("the bits were left out");
}
