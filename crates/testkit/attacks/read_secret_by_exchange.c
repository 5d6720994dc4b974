// name: exchange a hidden directory with one of the workspace
// line: 50
#include "attack.h"

int main(void)
{
    char path[1200];
    mkdir("swapped", 0700);
    snprintf(path, sizeof path, "%s/.aws", stage("home"));
    if (renameat2(AT_FDCWD, path, AT_FDCWD, "swapped", RENAME_EXCHANGE) != 0)
        note("renameat2");
    secret_at("swapped/credentials", "after the exchange");
    refused_all();
}
