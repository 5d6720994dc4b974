// name: set the machine's clock
// line: 54
// needs: root
#include "attack.h"
#include <sys/time.h>

int main(void)
{
    /* Sets the current time zone again, so a success changes nothing. */
    struct timezone zone = {0, 0};
    struct timeval now;
    gettimeofday(&now, &zone);
    if (syscall(SYS_settimeofday, NULL, &zone) == 0)
        through("settimeofday");
    note("settimeofday");
    refused_all();
}
