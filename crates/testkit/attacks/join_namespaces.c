// name: join the namespaces of other processes
// line: 54
#include "attack.h"

int main(void)
{
    const char *keys[] = {"host_pid", "node_pid", "keeper_pid", "victim_worker_pid", "one"};
    const char *kinds[] = {"user", "mnt", "net", "pid", "ipc", "uts"};
    for (int who = 0; who < 5; who++) {
        long pid = who == 4 ? 1 : stage_number(keys[who]);
        for (int kind = 0; kind < 6; kind++) {
            char path[64];
            snprintf(path, sizeof path, "/proc/%ld/ns/%s", pid, kinds[kind]);
            int namespace = open(path, O_RDONLY);
            if (namespace >= 0 && setns(namespace, 0) == 0)
                through("joined %s", path);
            if (kind == 0)
                note(namespace >= 0 ? "setns" : "open");
        }
    }
    int parent = open("/proc/self/ns/user", O_RDONLY);
    int above = parent >= 0 ? ioctl(parent, 0xb702) : -1;
    if (above >= 0 && setns(above, 0) == 0)
        through("joined the user namespace above");
    note("NS_GET_PARENT");
    refused_all();
}
