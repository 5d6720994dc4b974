// name: swap trusted names with something else in one step
// line: 69
// finding: 8
// control: protected
// workspace: all names
#include "attack.h"

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif
#define RENAME_NOREPLACE_ 1

int main(void)
{
    const char *names[] = {".git", "AGENTS.md", ".bashrc", ".profile", ".gitconfig", ".husky", "GEMINI.md",
                           ".devcontainer", ".cargo", ".envrc", ".zed", "opencode.json", ".mcp.json"};
    mkdir("exchanged", 0755);
    for (unsigned at = 0; at < sizeof names / sizeof *names; at++) {
        if (syscall(SYS_renameat2, AT_FDCWD, "exchanged", AT_FDCWD, names[at], RENAME_EXCHANGE) == 0)
            through("%s was exchanged", names[at]);
        if (syscall(SYS_renameat2, AT_FDCWD, names[at], AT_FDCWD, "moved", RENAME_NOREPLACE_) == 0)
            through("%s was moved away", names[at]);
    }
    note("renameat2");
    refused_all();
}
