// name: learn the host's interfaces and events over netlink
// line: 52
// networks: none hosts
#include "attack.h"
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>

static void ask_links(void)
{
    static char bytes[65536];
    struct {
        struct nlmsghdr head;
        struct ifinfomsg body;
    } question = {
        .head = {.nlmsg_len = sizeof question, .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
    };
    int link = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    if (link < 0 || send(link, &question, sizeof question, 0) < 0) {
        note("NETLINK_ROUTE");
        return;
    }
    ssize_t length = recv(link, bytes, sizeof bytes, 0);
    int interfaces = 0;
    for (struct nlmsghdr *head = (void *)bytes; NLMSG_OK(head, length); head = NLMSG_NEXT(head, length)) {
        if (head->nlmsg_type != RTM_NEWLINK)
            continue;
        struct ifinfomsg *body = NLMSG_DATA(head);
        interfaces += body->ifi_index != 1;
    }
    if (interfaces)
        through("netlink shows %d interfaces besides loopback", interfaces);
    errno = ENODEV;
    note("NETLINK_ROUTE");
}

int main(void)
{
    ask_links();
    int families[] = {NETLINK_KOBJECT_UEVENT, NETLINK_AUDIT, NETLINK_NETFILTER, NETLINK_XFRM, NETLINK_SOCK_DIAG, NETLINK_GENERIC};
    for (int at = 0; at < 6; at++) {
        struct sockaddr_nl here = {.nl_family = AF_NETLINK, .nl_groups = 1};
        int link = socket(AF_NETLINK, SOCK_RAW, families[at]);
        if (link < 0) {
            note("socket AF_NETLINK");
        } else if (bind(link, (void *)&here, sizeof here) == 0) {
            through("listens to netlink family %d", families[at]);
        } else {
            note("bind");
        }
    }
    refused_all();
}
