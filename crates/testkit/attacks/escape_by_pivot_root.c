// name: make another directory the root
// line: 50
// needs: root
#include "attack.h"

/* Creates a new mount namespace first, so that the root of the machine does not change. */
int main(void)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/.ssh/id_rsa", stage("home"));
    if (unshare(CLONE_NEWNS) != 0)
        refused_on("unshare");
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    mkdir("new", 0700);
    if (mount("/", "new", NULL, MS_BIND, NULL) != 0)
        refused_on("mount");
    if (chdir("new") != 0 || syscall(SYS_pivot_root, ".", ".") != 0)
        refused_on("pivot_root");
    if (umount2(".", MNT_DETACH) != 0)
        note("umount2");
    secret_at(path, "in the new root");
    refused_all();
}
