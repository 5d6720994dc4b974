// name: bind a hidden directory into the workspace
// line: 50
#include "attack.h"

int main(void)
{
    char from[1200], file[64];
    snprintf(from, sizeof from, "%s/.ssh", stage("home"));
    mkdir("bound", 0700);
    if (mount(from, "bound", NULL, MS_BIND, NULL) != 0)
        refused_on("mount");
    snprintf(file, sizeof file, "bound/id_rsa");
    int descriptor = open(file, O_RDONLY);
    umount2("bound", MNT_DETACH);
    secret_from(descriptor, "bind mount");
    refused_all();
}
