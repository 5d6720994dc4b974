// name: have the kernel load a protocol on top of TCP (TCP_ULP)
// line: 54
// finding: 11
#include "attack.h"
#include <arpa/inet.h>
#include <netinet/in.h>

#define TCP_ULP_ 31

int main(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || one < 0)
        refused_on("socket");
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0)
        refused_on("bind");
    getsockname(listener, (struct sockaddr *)&address, &length);
    if (connect(one, (struct sockaddr *)&address, sizeof address) != 0)
        refused_on("connect");
    const char *names[] = {"tls", "espintcp", "smc", "mptcp"};
    for (int at = 0; at < 4; at++) {
        if (setsockopt(one, IPPROTO_TCP, TCP_ULP_, names[at], strlen(names[at])) == 0)
            through("TCP_ULP %s", names[at]);
        if (errno != EPERM && errno != EACCES && errno != ENOPROTOOPT && errno != ENOSYS)
            through("the kernel looked for %s: %s", names[at], error_name());
        note(names[at]);
    }
    refused_all();
}
