// name: open sockets of rarely used families
// line: 52
#include "attack.h"

int main(void)
{
    /* AF_AX25, AF_IPX, AF_X25, AF_CAN, AF_TIPC, AF_BLUETOOTH, AF_ALG, AF_NFC, AF_KCM, AF_SMC, AF_XDP,
       AF_RDS, AF_QIPCRTR, AF_KEY, AF_PPPOX, AF_LLC. */
    int families[] = {3, 4, 9, 29, 30, 31, 38, 39, 41, 43, 44, 21, 42, 15, 24, 26};
    int kinds[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET, SOCK_RAW};
    for (unsigned family = 0; family < sizeof families / sizeof *families; family++) {
        for (int kind = 0; kind < 4; kind++)
            if (socket(families[family], kinds[kind], 0) >= 0)
                through("a socket of family %d", families[family]);
        int pair[2];
        if (socketpair(families[family], SOCK_SEQPACKET, 0, pair) == 0)
            through("a socket pair of family %d", families[family]);
    }
    refused_on("socket");
}
