// name: use the kernel's keyrings
// line: 54
#include "attack.h"

#define KEY_SPEC_PROCESS_KEYRING (-2)
#define KEYCTL_GET_KEYRING_ID 0
#define KEYCTL_JOIN_SESSION_KEYRING 1

int main(void)
{
    if (syscall(SYS_add_key, "user", "windlass", "x", 1, KEY_SPEC_PROCESS_KEYRING) >= 0)
        through("a key in a keyring");
    note("add_key");
    if (syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_PROCESS_KEYRING, 1) >= 0)
        through("a keyring");
    note("keyctl");
    if (syscall(SYS_request_key, "user", "windlass-none", NULL, 0) >= 0 || errno == ENOKEY)
        through("request_key searched");
    note("request_key");
    refused_all();
}
