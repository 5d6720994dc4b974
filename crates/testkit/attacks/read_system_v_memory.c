// name: read the host's System V shared memory
// line: 51
#include "attack.h"
#include <sys/ipc.h>
#include <sys/shm.h>

int main(void)
{
    int memory = shmget((key_t)stage_number("ipc_key"), 0, 0);
    if (memory < 0)
        refused_on("shmget");
    const char *bytes = shmat(memory, NULL, SHM_RDONLY);
    if (bytes == (void *)-1)
        refused_on("shmat");
    const char *secret = canary_in(bytes, 4096);
    if (secret)
        through("%s", secret);
    refused("another memory under that key");
}
