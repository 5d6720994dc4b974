// name: read the host's POSIX message queue
// line: 51
#include "attack.h"
#include <mqueue.h>

int main(void)
{
    mqd_t queue = mq_open(stage("mq_name"), O_RDONLY | O_NONBLOCK);
    if (queue == (mqd_t)-1)
        refused_on("mq_open");
    struct mq_attr attributes;
    if (mq_getattr(queue, &attributes) == 0)
        through("opened a queue with %ld messages", attributes.mq_curmsgs);
    refused_on("mq_getattr");
}
