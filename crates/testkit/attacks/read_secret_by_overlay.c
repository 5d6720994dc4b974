// name: overlay a hidden directory in the workspace
// line: 50
#include "attack.h"

int main(void)
{
    char options[2048];
    mkdir("over", 0700);
    mkdir("over/empty", 0700);
    mkdir("over/seen", 0700);
    snprintf(options, sizeof options, "lowerdir=%s/.ssh:over/empty", stage("home"));
    if (mount("overlay", "over/seen", "overlay", MS_RDONLY, options) != 0)
        refused_on("mount");
    int descriptor = open("over/seen/id_rsa", O_RDONLY);
    umount2("over/seen", MNT_DETACH);
    secret_from(descriptor, "overlay");
    refused_all();
}
