// name: count events of the processor and the kernel
// line: 54
#include "attack.h"
#include <linux/perf_event.h>

int main(void)
{
    struct perf_event_attr kinds[] = {
        {.type = PERF_TYPE_SOFTWARE, .size = sizeof *kinds, .config = PERF_COUNT_SW_CPU_CLOCK, .exclude_kernel = 1},
        {.type = PERF_TYPE_SOFTWARE, .size = sizeof *kinds, .config = PERF_COUNT_SW_TASK_CLOCK},
    };
    for (int at = 0; at < 2; at++) {
        if (syscall(SYS_perf_event_open, &kinds[at], 0, -1, -1, 0) >= 0)
            through("an event counter");
        note("perf_event_open");
    }
    refused_all();
}
