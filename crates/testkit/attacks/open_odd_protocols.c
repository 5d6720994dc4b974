// name: open internet sockets of rarely used protocols: MPTCP, UDP-Lite, DCCP, SCTP
// line: 54
// finding: 11
#include "attack.h"

int main(void)
{
    struct { const char *name; int kind, protocol; } odd[] = {
        {"MPTCP", SOCK_STREAM, 262}, {"UDP-Lite", SOCK_DGRAM, 136}, {"SCTP", SOCK_SEQPACKET, 132},
        {"SCTP stream", SOCK_STREAM, 132}, {"DCCP", 6, 33}, {"SMC", SOCK_STREAM, 256}, {"L2TP", SOCK_DGRAM, 115},
    };
    int families[] = {2, 10};
    for (unsigned at = 0; at < sizeof odd / sizeof *odd; at++)
        for (int family = 0; family < 2; family++) {
            if (socket(families[family], odd[at].kind, odd[at].protocol) >= 0)
                through("a socket of %s", odd[at].name);
            note(odd[at].name);
        }
    refused_all();
}
