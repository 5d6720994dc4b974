// name: make a new user namespace with clone3, whose flags no filter can see
// line: 54
#include "attack.h"
#include <linux/sched.h>

int main(void)
{
    struct clone_args arguments = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    long child = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (child == 0)
        _exit(0);
    if (child > 0) {
        waitpid((pid_t)child, NULL, 0);
        through("a process in a new user namespace");
    }
    refused_on("clone3");
}
