// name: make a new user namespace with clone
// line: 54
#include "attack.h"

int main(void)
{
    long child = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        _exit(0);
    if (child > 0) {
        waitpid((pid_t)child, NULL, 0);
        through("a process in a new user namespace");
    }
    refused_on("clone");
}
