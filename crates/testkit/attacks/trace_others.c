// name: trace the host's process, the keeper, the node and another session
// line: 51
#include "attack.h"

int main(void)
{
    const char *keys[] = {"host_number", "keeper_number", "node_number", "victim_keeper_number", "victim_worker_number"};
    for (int at = 0; at < 5; at++) {
        pid_t pid = (pid_t)stage_number(keys[at]);
        if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0) {
            ptrace(PTRACE_DETACH, pid, NULL, NULL);
            through("traced %s", keys[at]);
        }
        note(keys[at]);
    }
    refused_all();
}
