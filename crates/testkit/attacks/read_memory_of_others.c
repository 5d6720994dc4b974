// name: read the memory of others with process_vm_readv
// line: 51
#include "attack.h"

int main(void)
{
    const char *keys[] = {"host_number", "keeper_number", "node_number", "victim_keeper_number", "victim_worker_number"};
    static char bytes[64];
    for (int at = 0; at < 5; at++) {
        pid_t pid = (pid_t)stage_number(keys[at]);
        /* The address of this stack may be unmapped in the other process. EFAULT means that only the
           address was wrong. */
        struct iovec local = {bytes, sizeof bytes}, remote = {bytes, sizeof bytes};
        ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
        if (got >= 0 || errno == EFAULT)
            through("process_vm_readv reached %s", keys[at]);
        note(keys[at]);
        if (process_vm_writev(pid, &local, 1, &remote, 1, 0) >= 0)
            through("process_vm_writev reached %s", keys[at]);
    }
    refused_all();
}
