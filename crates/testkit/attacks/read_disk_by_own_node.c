// name: make a device node for the disk, and read it
// line: 54
// needs: root
#include "attack.h"
#include <sys/sysmacros.h>

int main(void)
{
    struct stat here;
    stat(".", &here);
    unlink("disk");
    unlink("memory");
    if (mknod("disk", S_IFBLK | 0600, here.st_dev) != 0) {
        note("mknod b");
    } else {
        int descriptor = open("disk", O_RDONLY);
        unlink("disk");
        char byte;
        if (descriptor >= 0 && read(descriptor, &byte, 1) == 1)
            through("read the disk");
        note("open of the disk");
    }
    if (mknod("memory", S_IFCHR | 0600, makedev(1, 1)) != 0) {
        note("mknod c");
    } else {
        int descriptor = open("memory", O_RDONLY);
        unlink("memory");
        if (descriptor >= 0)
            through("opened the memory");
        note("open of the memory");
    }
    refused_all();
}
