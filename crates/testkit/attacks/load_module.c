// name: load a kernel module
// line: 54
// needs: root
#include "attack.h"

/* The kernel checks the rights before it reads the module, which is invalid. Any error but EPERM comes
   from reading it. */
int main(void)
{
    if (syscall(SYS_init_module, "not a module", 12, "") == 0 || (errno != EPERM && errno != ENOSYS))
        through("init_module read the module: %s", error_name());
    note("init_module");
    int file = open("/dev/null", O_RDONLY);
    if (syscall(SYS_finit_module, file, "", 0) == 0 || (errno != EPERM && errno != ENOSYS && errno != EACCES))
        through("finit_module read the module: %s", error_name());
    note("finit_module");
    if (syscall(SYS_delete_module, "windlass_none", O_NONBLOCK) == 0 || (errno != EPERM && errno != ENOSYS))
        through("delete_module looked for the module: %s", error_name());
    note("delete_module");
    refused_all();
}
