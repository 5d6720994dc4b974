// name: give a file in the workspace the set-user-id or set-group-id bit
// line: 54
// finding: 9
#include "attack.h"

#define SYS_FCHMODAT2 452

static void seen(const char *how)
{
    struct stat about;
    if (stat("setuid-file", &about) == 0 && about.st_mode & (S_ISUID | S_ISGID)) {
        unlink("setuid-file");
        through("%s: mode %o", how, about.st_mode & 07777);
    }
    note(how);
    unlink("setuid-file");
}

static int made(void)
{
    return open("setuid-file", O_CREAT | O_WRONLY | O_TRUNC, 0755);
}

int main(void)
{
    int modes[] = {04755, 02755, 06755};
    for (int at = 0; at < 3; at++) {
        int file = made();
        syscall(SYS_chmod, "setuid-file", modes[at]);
        seen("chmod");
        close(file);
        file = made();
        syscall(SYS_fchmod, file, modes[at]);
        seen("fchmod");
        close(file);
        file = made();
        syscall(SYS_fchmodat, AT_FDCWD, "setuid-file", modes[at]);
        seen("fchmodat");
        close(file);
        file = made();
        syscall(SYS_FCHMODAT2, AT_FDCWD, "setuid-file", modes[at], 0);
        seen("fchmodat2");
        close(file);
    }
    refused_all();
}
