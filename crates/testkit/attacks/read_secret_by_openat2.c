// name: read a secret with openat2 and every way to resolve
// line: 50
#include "attack.h"
#include <linux/openat2.h>

int main(void)
{
    char path[1200];
    uint64_t ways[] = {0, RESOLVE_NO_MAGICLINKS, RESOLVE_IN_ROOT, RESOLVE_NO_XDEV};
    int root = open("/", O_PATH | O_DIRECTORY);
    snprintf(path, sizeof path, "%s/.ssh/id_rsa", stage("home"));
    for (int at = 0; at < 4; at++) {
        struct open_how how = {.flags = O_RDONLY, .resolve = ways[at]};
        secret_from((int)syscall(SYS_openat2, root, path + 1, &how, sizeof how), "openat2");
    }
    refused_all();
}
