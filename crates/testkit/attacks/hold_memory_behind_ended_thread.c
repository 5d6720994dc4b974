// name: hold more memory than the limit in a process whose first thread has ended
// line: 53
// session: own
// control: memory
// limits: memory_bytes=134217728
#include "attack.h"

static void hold(int *told)
{
    hold_memory_in_thread(told, CLONE_FILES);
    syscall(SYS_exit, 0);
}

int main(void)
{
    hold_in_child(hold);
}
