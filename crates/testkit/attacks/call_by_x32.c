// name: pass a filter by calling the kernel with x32 numbers
// line: 54
#include "attack.h"

int main(void)
{
#if defined(__x86_64__)
    const long x32 = 0x40000000;
    if (syscall(x32 | SYS_keyctl, 0, -2, 1) >= 0)
        through("keyctl by x32");
    note("keyctl by x32");
    if (syscall(x32 | SYS_unshare, CLONE_NEWUSER) == 0)
        through("a user namespace by x32");
    note("unshare by x32");
    if (syscall(x32 | SYS_getpid) == getpid())
        through("x32 calls are there");
    note("getpid by x32");
#endif
    refused_all();
}
