// name: set up an io_uring
// line: 54
#include "attack.h"

int main(void)
{
    unsigned char parameters[256] = {0};
    long ring = syscall(425, 4, parameters);
    if (ring >= 0)
        through("an io_uring");
    note("io_uring_setup");
    if (syscall(426, -1, 0, 0, 0, NULL, 0) < 0 && errno == EBADF)
        through("io_uring_enter is there");
    note("io_uring_enter");
    refused_all();
}
