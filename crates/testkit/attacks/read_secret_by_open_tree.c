// name: clone the tree below a hidden path with the new mount calls
// line: 50
#include "attack.h"

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif

int main(void)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/.ssh", stage("home"));
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | O_CLOEXEC);
    if (tree >= 0)
        secret_from(openat(tree, "id_rsa", O_RDONLY), "a cloned tree");
    else
        note("open_tree");
    int root = (int)syscall(SYS_open_tree, AT_FDCWD, "/", OPEN_TREE_CLONE | O_CLOEXEC);
    if (root >= 0) {
        /* A clone without submounts does not contain the mount that covers the path. */
        snprintf(path, sizeof path, "%s/.ssh/id_rsa", stage("home") + 1);
        secret_from(openat(root, path, O_RDONLY), "a cloned root");
    } else {
        note("open_tree of /");
    }
    refused_all();
}
