// name: make calls that are newer than what was reviewed
// line: 54
// finding: 11
#include "attack.h"

int main(void)
{
    /* The arguments are invalid for every system call that exists. */
    for (long number = 471; number < 1024; number++)
        if (syscall(number, -1L, -1L, -1L, -1L, -1L, -1L) != -1 || (errno != ENOSYS && errno != EPERM))
            through("call %ld: %s", number, error_name());
    errno = ENOSYS;
    refused_on("471 to 1023");
}
