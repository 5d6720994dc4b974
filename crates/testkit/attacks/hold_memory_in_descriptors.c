// name: hold more memory than the limit in files that have no name
// line: 53
// session: own
// control: memory
// limits: memory_bytes=134217728
#include "attack.h"

#define STEP (16 << 20)
#define MOST (320 << 20)
#define LIMIT (128 << 20)

int main(void)
{
    int told[2];
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    if (pipe(told) != 0)
        return 1;
    pid_t child = fork();
    if (child == 0) {
        int file = (int)syscall(SYS_memfd_create, "held", 0);
        for (long held = 0; held < MOST; held += sizeof block) {
            if (file < 0 || write(file, block, sizeof block) != sizeof block)
                _exit(1);
            if ((held + sizeof block) % STEP == 0 && write(told[1], "x", 1) != 1)
                _exit(1);
        }
        /* The limit is checked at intervals. */
        sleep(3);
        _exit(0);
    }
    close(told[1]);
    long held = 0;
    char byte;
    while (read(told[0], &byte, 1) == 1)
        held += STEP;
    int status = 0;
    waitpid(child, &status, 0);
    if (held <= LIMIT)
        refused("ended with %d at %ld MiB", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status), held >> 20);
    through("held %ld MiB", held >> 20);
}
