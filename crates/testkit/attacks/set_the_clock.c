// name: set the machine's clock
// line: 54
// needs: root
#include "attack.h"
#include <sys/time.h>

int main(void)
{
    /* The time zone that it has: nothing changes where it succeeds. */
    struct timezone zone = {0, 0};
    struct timeval now;
    gettimeofday(&now, &zone);
    if (syscall(SYS_settimeofday, NULL, &zone) == 0)
        through("settimeofday");
    note("settimeofday");
    refused_all();
}
