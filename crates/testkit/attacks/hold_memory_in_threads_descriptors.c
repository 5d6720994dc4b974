// name: hold more memory than the limit in descriptors of one thread alone
// line: 53
// session: own
// control: memory
// limits: memory_bytes=134217728
#include "attack.h"

static void hold(int *told)
{
    hold_memory_in_thread(told, 0);
}

int main(void)
{
    hold_in_child(hold);
}
