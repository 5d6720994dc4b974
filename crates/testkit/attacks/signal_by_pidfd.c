// name: signal others by descriptors, threads and queues
// line: 51
#include "attack.h"

int main(void)
{
    const char *keys[] = {"host_number", "keeper_number", "node_number", "victim_keeper_number", "victim_worker_number"};
    for (int at = 0; at < 5; at++) {
        pid_t pid = (pid_t)stage_number(keys[at]);
        int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (pidfd >= 0 && syscall(SYS_pidfd_send_signal, pidfd, SIGURG, NULL, 0) == 0)
            through("pidfd_send_signal reached %s", keys[at]);
        if (syscall(SYS_tgkill, pid, pid, SIGURG) == 0)
            through("tgkill reached %s", keys[at]);
        if (syscall(SYS_tkill, pid, SIGURG) == 0)
            through("tkill reached %s", keys[at]);
        siginfo_t info = {.si_signo = SIGURG, .si_code = SI_QUEUE};
        if (syscall(SYS_rt_sigqueueinfo, pid, SIGURG, &info) == 0)
            through("rt_sigqueueinfo reached %s", keys[at]);
        note(keys[at]);
    }
    refused_all();
}
