// name: learn where the keeper's memory is, with kcmp
// line: 51
#include "attack.h"
#include <linux/kcmp.h>

int main(void)
{
    const char *keys[] = {"host_number", "keeper_number", "node_number"};
    for (int at = 0; at < 3; at++) {
        if (syscall(SYS_kcmp, getpid(), (pid_t)stage_number(keys[at]), KCMP_VM, 0, 0) >= 0)
            through("kcmp compared with %s", keys[at]);
        note(keys[at]);
    }
    refused_all();
}
