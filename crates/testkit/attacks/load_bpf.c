// name: load a bpf program
// line: 54
#include "attack.h"
#include <linux/bpf.h>

int main(void)
{
    /* r0 = 0; exit: the smallest valid program. */
    struct bpf_insn code[] = {{.code = 0xb7}, {.code = 0x95}};
    union bpf_attr program = {
        .prog_type = BPF_PROG_TYPE_SOCKET_FILTER,
        .insns = (uint64_t)(uintptr_t)code,
        .insn_cnt = 2,
        .license = (uint64_t)(uintptr_t) "GPL",
    };
    if (syscall(SYS_bpf, BPF_PROG_LOAD, &program, sizeof program) >= 0)
        through("a bpf program");
    note("BPF_PROG_LOAD");
    union bpf_attr map = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
    if (syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map) >= 0)
        through("a bpf map");
    note("BPF_MAP_CREATE");
    refused_all();
}
