// name: make a file or directory with the set-user-id or set-group-id bit
// line: 54
// finding: 9
#include "attack.h"

static void seen(const char *how)
{
    struct stat about;
    if (lstat("setuid-made", &about) == 0 && about.st_mode & (S_ISUID | S_ISGID)) {
        rmdir("setuid-made");
        unlink("setuid-made");
        through("%s: mode %o", how, about.st_mode & 07777);
    }
    note(how);
    rmdir("setuid-made");
    unlink("setuid-made");
}

int main(void)
{
    umask(0);
    syscall(SYS_open, "setuid-made", O_CREAT | O_WRONLY, 06755);
    seen("open");
    syscall(SYS_openat, AT_FDCWD, "setuid-made", O_CREAT | O_WRONLY, 06755);
    seen("openat");
    syscall(SYS_creat, "setuid-made", 06755);
    seen("creat");
    syscall(SYS_mknod, "setuid-made", S_IFREG | 06755, 0);
    seen("mknod");
    syscall(SYS_mknodat, AT_FDCWD, "setuid-made", S_IFREG | 06755, 0);
    seen("mknodat");
    syscall(SYS_mkdir, "setuid-made", 06755);
    seen("mkdir");
    syscall(SYS_mkdirat, AT_FDCWD, "setuid-made", 06755);
    seen("mkdirat");
    int file = (int)syscall(SYS_openat, AT_FDCWD, ".", O_TMPFILE | O_RDWR, 06755);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    linkat(AT_FDCWD, path, AT_FDCWD, "setuid-made", AT_SYMLINK_FOLLOW);
    seen("a file without a name");
    refused_all();
}
