// name: take away what covers a hidden path
// line: 50
#include "attack.h"

int main(void)
{
    char path[1200], file[1300];
    snprintf(path, sizeof path, "%s/.ssh", stage("home"));
    snprintf(file, sizeof file, "%s/id_rsa", path);
    if (umount2(path, MNT_DETACH) != 0)
        note("umount2");
    mkdir("aside", 0700);
    if (mount(path, "aside", NULL, MS_MOVE, NULL) != 0)
        note("mount MS_MOVE");
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, path, O_CLOEXEC);
    if (tree < 0 || syscall(SYS_move_mount, tree, "", AT_FDCWD, "aside", 4) != 0)
        note("move_mount");
    secret_at(file, "open");
    refused_all();
}
