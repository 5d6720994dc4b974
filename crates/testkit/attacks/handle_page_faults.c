// name: hold the kernel up in page faults of its own
// line: 54
#include "attack.h"

int main(void)
{
    if (syscall(SYS_userfaultfd, O_CLOEXEC) >= 0)
        through("userfaultfd");
    note("userfaultfd");
    if (syscall(SYS_userfaultfd, O_CLOEXEC | 1) >= 0)
        through("userfaultfd of user faults");
    note("userfaultfd of user faults");
    int device = open("/dev/userfaultfd", O_RDWR);
    if (device >= 0)
        through("/dev/userfaultfd");
    note("/dev/userfaultfd");
    refused_all();
}
