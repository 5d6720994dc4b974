// name: hold memory that nobody can look into, by memfd_secret
// line: 54
// finding: 11
#include "attack.h"

#define SYS_MEMFD_SECRET 447

int main(void)
{
    long file = syscall(SYS_MEMFD_SECRET, 0);
    if (file >= 0)
        through("memory of its own that the kernel itself does not map");
    /* An invalid flag: a kernel that has the call returns EINVAL. */
    int first = errno;
    syscall(SYS_MEMFD_SECRET, 0x4000);
    if (errno == EINVAL)
        through("the kernel looked at its arguments");
    errno = first;
    refused_on("memfd_secret");
}
