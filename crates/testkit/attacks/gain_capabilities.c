// name: have or gain a capability
// line: 54
#include "attack.h"
#include <linux/capability.h>

int main(void)
{
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct has[2] = {{0}};
    if (syscall(SYS_capget, &head, has) != 0)
        note("capget");
    if (has[0].effective | has[1].effective | has[0].permitted | has[1].permitted)
        through("capabilities %08x%08x", has[1].permitted, has[0].permitted);
    struct __user_cap_data_struct all[2] = {{~0u, ~0u, ~0u}, {~0u, ~0u, ~0u}};
    if (syscall(SYS_capset, &head, all) == 0)
        through("capset");
    note("capset");
    for (int capability = 0; capability <= 40; capability++)
        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) == 0)
            through("ambient capability %d", capability);
    note("ambient");
    if (prctl(PR_SET_SECUREBITS, 0) == 0)
        through("securebits");
    note("securebits");
    refused_all();
}
