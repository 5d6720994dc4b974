// name: speak to hardware through ports
// line: 54
// needs: root
#include "attack.h"

int main(void)
{
#if defined(__x86_64__)
    if (syscall(SYS_iopl, 3) == 0)
        through("iopl");
    note("iopl");
    if (syscall(SYS_ioperm, 0x80, 1, 1) == 0)
        through("ioperm");
    note("ioperm");
#endif
    refused_all();
}
