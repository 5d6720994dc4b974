/* Common code of the attacks in C: access to the stage, and the result lines. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Size of one read. */
#define BYTES_MAX (1 << 20)

static inline void refused(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("\nrefused: ");
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    _exit(0);
}

static inline void through(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("\nthrough: ");
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    _exit(0);
}

static inline const char *error_name(void)
{
    const char *name = strerrorname_np(errno);
    return name ? name : "an unknown error";
}

/* Ends an attack whose only call failed. */
static inline void refused_on(const char *call)
{
    refused("%s on %s", error_name(), call);
}

/* Records a failed try; `refused_all` ends the attack with the recorded tries. */
static char noted[4096];

static inline void note(const char *call)
{
    size_t used = strlen(noted);
    snprintf(noted + used, sizeof noted - used, "%s%s on %s", used ? "; " : "", error_name(), call);
}

static inline void refused_all(void)
{
    refused("%s", noted[0] ? noted : "nothing to try");
}

/* A value of the flat stage.json beside the program: text or a number; "" when it is absent. */
static inline const char *stage(const char *key)
{
    static char text[65536];
    static char values[16][1024];
    static int next;
    if (!text[0]) {
        char path[1024];
        ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
        path[length > 0 ? length : 0] = 0;
        char *slash = strrchr(path, '/');
        strcpy(slash ? slash + 1 : path, "stage.json");
        FILE *file = fopen(path, "r");
        if (!file)
            file = fopen("attack/stage.json", "r");
        if (!file || fread(text, 1, sizeof text - 1, file) == 0) {
            printf("no stage\n");
            _exit(2);
        }
        fclose(file);
    }
    char quoted[128];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    char *value = values[next++ % 16];
    char *found = strstr(text, quoted);
    *value = 0;
    if (found) {
        found += strlen(quoted);
        found += strspn(found, " \"");
        size_t length = strcspn(found, "\",}\n");
        memcpy(value, found, length < 1023 ? length : 1023);
        value[length < 1023 ? length : 1023] = 0;
    }
    return value;
}

static inline long stage_number(const char *key)
{
    return atol(stage(key));
}

/* The secret in the bytes, or NULL. */
static inline const char *canary_in(const char *bytes, ssize_t length)
{
    static char secret[64];
    const char *mark = "windlass-canary-";
    for (ssize_t at = 0; at + 32 <= length; at++) {
        if (memcmp(bytes + at, mark, 16) == 0 && strspn(bytes + at + 16, "0123456789abcdef") >= 16) {
            memcpy(secret, bytes + at, 32);
            secret[32] = 0;
            return secret;
        }
    }
    return NULL;
}

/* Ends the attack if the descriptor delivers the secret. Otherwise records why not, and closes it. */
static inline void secret_from(int descriptor, const char *how)
{
    static char bytes[BYTES_MAX + 1];
    ssize_t length = -1;
    if (descriptor >= 0) {
        length = read(descriptor, bytes, BYTES_MAX);
        if (length >= 0)
            bytes[length] = 0;
        const char *secret = canary_in(bytes, length);
        if (secret)
            through("%s: %s", how, secret);
        if (length >= 0)
            errno = ENODATA;
        int kept = errno;
        close(descriptor);
        errno = kept;
    }
    note(how);
}

static inline void secret_at(const char *path, const char *how)
{
    secret_from(open(path, O_RDONLY | O_NONBLOCK), how);
}

/* Size of the memory of `hold_memory`, more than any limit that an attack sets for its session. */
#define HELD_MOST (320L << 20)

/* Allocates memory that only a descriptor holds, reports that with a byte, and keeps running. */
static inline int hold_memory(void *told)
{
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    int file = (int)syscall(SYS_memfd_create, "held", 0);
    for (long held = 0; held < HELD_MOST; held += sizeof block)
        if (file < 0 || write(file, block, sizeof block) != sizeof block)
            _exit(1);
    if (write(*(int *)told, "x", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

/* The same in a thread. `flags` select what it shares with the caller besides memory and signals. */
static inline void hold_memory_in_thread(int *told, int flags)
{
    static char stack[1 << 16];
    flags |= CLONE_VM | CLONE_SIGHAND | CLONE_THREAD;
    if (clone(hold_memory, stack + sizeof stack, flags, told) < 0)
        _exit(1);
}

/* Ends an attack whose child holds memory in its own way and keeps running: refused if the child was
   killed within some time. */
static inline void hold_in_child(void (*hold)(int *told))
{
    const int waits = 300, wait_us = 10000;
    int told[2], status = 0;
    char byte;
    if (pipe(told) != 0)
        _exit(1);
    pid_t child = fork();
    if (child == 0) {
        hold(&told[1]);
        for (;;)
            pause();
    }
    close(told[1]);
    if (read(told[0], &byte, 1) != 1)
        refused("the child has ended");
    for (int i = 0; i < waits; i++) {
        if (waitpid(child, &status, WNOHANG) != 0)
            refused("the child has ended");
        usleep(wait_us);
    }
    kill(child, SIGKILL);
    through("held %ld MiB for %d s", HELD_MOST >> 20, waits * wait_us / 1000000);
}
