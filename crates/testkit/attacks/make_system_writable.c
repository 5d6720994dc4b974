// name: mount the system writable again
// line: 50
// needs: root
#include "attack.h"

struct attributes {
    uint64_t set, clear, propagation, user_namespace;
};

int main(void)
{
    char path[1200];
    const char *targets[] = {"/", stage("home")};
    /* In a new mount namespace if that is allowed, so that the machine's mounts do not change. */
    if (unshare(CLONE_NEWNS) == 0)
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    for (int at = 0; at < 2; at++) {
        if (mount(NULL, targets[at], NULL, MS_REMOUNT | MS_BIND, NULL) != 0)
            note("remount");
        struct attributes attributes = {0, 1, 0, 0};
        if (syscall(SYS_mount_setattr, AT_FDCWD, targets[at], 0, &attributes, sizeof attributes) != 0)
            note("mount_setattr");
    }
    snprintf(path, sizeof path, "%s/.bashrc", stage("home"));
    int descriptor = open(path, O_WRONLY | O_APPEND);
    if (descriptor >= 0 && write(descriptor, "# evil\n", 7) == 7)
        through("wrote .bashrc");
    note("open");
    refused_all();
}
