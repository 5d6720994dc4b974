// name: read the host's System V message queue and semaphores
// line: 51
#include "attack.h"
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>

int main(void)
{
    struct {
        long kind;
        char text[256];
    } message;
    key_t key = (key_t)stage_number("ipc_key");
    int queue = msgget(key, 0);
    if (queue < 0) {
        note("msgget");
    } else {
        ssize_t length = msgrcv(queue, &message, sizeof message.text, 0, IPC_NOWAIT | 040000);
        if (length < 0)
            length = msgrcv(queue, &message, sizeof message.text, 0, IPC_NOWAIT);
        const char *secret = canary_in(message.text, length);
        if (secret)
            through("%s", secret);
        struct msqid_ds about;
        if (msgctl(queue, IPC_STAT, &about) == 0)
            through("reached the queue");
        note("msgrcv");
    }
    if (semget(key, 0, 0) >= 0)
        through("reached the semaphores");
    note("semget");
    refused_all();
}
