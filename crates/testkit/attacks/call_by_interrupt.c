// name: pass a filter by calling the kernel the 32-bit way
// line: 54
#include "attack.h"

#if defined(__x86_64__)
static long call32(long number, long one, long two, long three)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(one), "c"(two), "d"(three) : "memory", "r8", "r9", "r10", "r11");
    return result;
}
#endif

int main(void)
{
#if defined(__x86_64__)
    /* The 32-bit system call numbers: keyctl is 288, ptrace 26, unshare 310, getpid 20. */
    long keyring = call32(288, 0, -2, 1);
    if (keyring > 0)
        through("keyctl by int 0x80");
    errno = (int)-keyring;
    note("keyctl by int 0x80");
    pid_t child = fork();
    if (child == 0)
        _exit(call32(310, CLONE_NEWUSER, 0, 0) == 0 ? 7 : 0);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 7)
        through("a user namespace by int 0x80");
    errno = WIFSIGNALED(status) ? EFAULT : EPERM;
    note("unshare by int 0x80");
#endif
    refused_all();
}
