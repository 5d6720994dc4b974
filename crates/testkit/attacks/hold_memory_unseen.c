// name: hold more memory than the limit in a process that nobody may look into
// line: 53
// session: own
// control: memory
// limits: memory_bytes=134217728
#include "attack.h"

static void hold(int *told)
{
    /* From here on its /proc descriptors belong to root. */
    prctl(PR_SET_DUMPABLE, 0);
    hold_memory(told);
}

int main(void)
{
    hold_in_child(hold);
}
