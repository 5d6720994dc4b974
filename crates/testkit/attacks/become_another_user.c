// name: become another user or group
// line: 54
// needs: root
#include "attack.h"
#include <grp.h>

int main(void)
{
    gid_t groups[] = {6};
    pid_t child = fork();
    if (child == 0) {
        if (syscall(SYS_setgroups, 1, groups) == 0)
            _exit(100);
        if (syscall(SYS_setresgid, 6, 6, 6) == 0)
            _exit(101);
        if (syscall(SYS_setresuid, 65534, 65534, 65534) == 0)
            _exit(102);
        _exit(errno);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WEXITSTATUS(status) >= 100)
        through("became another: %d", WEXITSTATUS(status));
    errno = WEXITSTATUS(status);
    refused_on("setgroups, setresgid, setresuid");
}
