// name: watch a whole file system
// line: 54
#include "attack.h"
#include <sys/fanotify.h>

int main(void)
{
    int watch = fanotify_init(FAN_CLASS_NOTIF, O_RDONLY);
    if (watch < 0) {
        note("fanotify_init");
        watch = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID, O_RDONLY);
    }
    if (watch < 0) {
        note("fanotify_init with FAN_REPORT_FID");
        refused_all();
    }
    through("fanotify");
}
