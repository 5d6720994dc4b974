// name: send packets without a port: ICMP, raw IP, raw frames
// line: 52
// networks: none hosts
#include "attack.h"
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <netinet/in.h>

/* A ping of the loopback address: a reply shows that packets are sent. In a private network namespace the
   session only reaches itself, so there only sockets count that see more than their own traffic. */
static int network_is_own(void)
{
    char line[512];
    int interfaces = 0;
    FILE *file = fopen("/proc/self/net/dev", "r");
    while (file && fgets(line, sizeof line, file))
        interfaces++;
    return file && interfaces <= 3;
}

int main(void)
{
    int packet = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    if (packet >= 0)
        through("a packet socket");
    note("socket AF_PACKET");
    int raw = socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
    if (raw >= 0)
        through("a raw socket");
    note("socket SOCK_RAW");
    int raw6 = socket(AF_INET6, SOCK_RAW, 58);
    if (raw6 >= 0)
        through("a raw IPv6 socket");
    note("socket AF_INET6 SOCK_RAW");
    int ping = socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP);
    if (ping < 0) {
        note("socket ICMP");
        refused_all();
    }
    unsigned char question[8] = {8, 0, 0, 0, 0, 0, 0, 1}, answer[64];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval patience = {1, 0};
    setsockopt(ping, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (sendto(ping, question, sizeof question, 0, (void *)&to, sizeof to) == sizeof question
        && recv(ping, answer, sizeof answer, 0) > 0 && !network_is_own())
        through("the host answered a ping");
    note("ping");
    refused_all();
}
