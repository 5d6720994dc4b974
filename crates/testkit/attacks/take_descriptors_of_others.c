// name: take descriptors out of the keeper, the node and another session
// line: 51
#include "attack.h"

int main(void)
{
    const char *keys[] = {"host_number", "keeper_number", "node_number", "victim_keeper_number", "victim_worker_number"};
    for (int at = 0; at < 5; at++) {
        int pidfd = (int)syscall(SYS_pidfd_open, (pid_t)stage_number(keys[at]), 0);
        if (pidfd < 0) {
            note(keys[at]);
            continue;
        }
        for (int descriptor = 0; descriptor < 32; descriptor++) {
            if (syscall(SYS_pidfd_getfd, pidfd, descriptor, 0) >= 0)
                through("took descriptor %d of %s", descriptor, keys[at]);
        }
        note("pidfd_getfd");
    }
    refused_all();
}
