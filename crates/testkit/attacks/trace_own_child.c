// name: trace a process of its own
// line: 54
#include "attack.h"

int main(void)
{
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    long traced = ptrace(PTRACE_SEIZE, child, NULL, NULL);
    int why = errno;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    errno = why;
    if (traced == 0)
        through("traced a child");
    refused_on("ptrace");
}
