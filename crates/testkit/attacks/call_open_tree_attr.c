// name: take hold of a mount by open_tree_attr
// line: 54
// finding: 11
#include "attack.h"

#define SYS_OPEN_TREE_ATTR 467

int main(void)
{
    long file = syscall(SYS_OPEN_TREE_ATTR, AT_FDCWD, "/", 0, NULL, 0L);
    if (file >= 0)
        through("a descriptor of the root's mount");
    if (errno != ENOSYS && errno != EPERM)
        through("the kernel looked at its arguments: %s", error_name());
    refused_on("open_tree_attr");
}
