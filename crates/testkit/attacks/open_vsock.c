// name: open a socket to the hypervisor
// line: 52
#include "attack.h"
#include <linux/vm_sockets.h>

int main(void)
{
    struct sockaddr_vm here = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = VMADDR_PORT_ANY};
    int kinds[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET};
    for (int at = 0; at < 3; at++) {
        int made = socket(AF_VSOCK, kinds[at], 0);
        if (made >= 0 && bind(made, (void *)&here, sizeof here) == 0)
            through("a bound vsock socket");
        note("socket AF_VSOCK");
    }
    refused_all();
}
