// name: make new namespaces with unshare
// line: 54
#include "attack.h"

int main(void)
{
    int kinds[] = {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWPID, CLONE_NEWIPC, CLONE_NEWUTS, CLONE_NEWCGROUP,
                   CLONE_NEWTIME, CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET};
    for (unsigned at = 0; at < sizeof kinds / sizeof *kinds; at++) {
        if (unshare(kinds[at]) == 0)
            through("unshare of 0x%x", kinds[at]);
        note("unshare");
    }
    refused_all();
}
