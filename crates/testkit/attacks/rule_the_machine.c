// name: reboot, swap, account, set quotas, load another kernel
// line: 54
// needs: root
#include "attack.h"

/* Each call has an argument that the kernel refuses after it has checked the rights. So nothing happens
   to the machine, and any error but a refusal shows that the rights were sufficient. */
static void judge(const char *call, long done)
{
    if (done >= 0)
        through("%s", call);
    if (errno != EPERM && errno != ENOSYS && errno != EACCES)
        through("%s only minded its argument: %s", call, error_name());
    note(call);
}

int main(void)
{
    judge("reboot", syscall(SYS_reboot, 1, 2, 3, NULL));
    judge("swapon", syscall(SYS_swapon, "none-such", 0));
    judge("swapoff", syscall(SYS_swapoff, "none-such"));
    judge("acct", syscall(SYS_acct, "none-such/file"));
    judge("kexec_load", syscall(SYS_kexec_load, 0, 1000, NULL, 0));
    judge("sethostname", syscall(SYS_sethostname, "", 1000));
    judge("setdomainname", syscall(SYS_setdomainname, "", 1000));
    judge("syslog", syscall(SYS_syslog, 3, NULL, -1));
    refused_all();
}
