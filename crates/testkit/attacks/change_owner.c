// name: give a file of the workspace to another user, and make it setuid
// line: 54
// needs: root
#include "attack.h"
#include <sys/xattr.h>

int main(void)
{
    int file = open("owned", O_CREAT | O_RDWR, 0700);
    if (fchown(file, 65534, 65534) == 0)
        through("fchown");
    note("fchown");
    unsigned char capabilities[20] = {0x01, 0, 0, 2, 0xff, 0xff, 0xff, 0xff};
    if (fsetxattr(file, "security.capability", capabilities, sizeof capabilities, 0) == 0)
        through("a file with capabilities");
    note("setxattr");
    refused_all();
}
