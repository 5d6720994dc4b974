// name: type into a terminal, as if a person did
// line: 54
#include "attack.h"
#include <stdlib.h>
#include <termios.h>

int main(void)
{
    /* On a new terminal: a filter cannot know which terminal it is. */
    int leader = posix_openpt(O_RDWR | O_NOCTTY);
    if (leader < 0)
        leader = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY);
    if (leader < 0 || grantpt(leader) != 0 || unlockpt(leader) != 0) {
        note("posix_openpt");
    } else {
        pid_t child = fork();
        if (child == 0) {
            setsid();
            int terminal = open(ptsname(leader), O_RDWR);
            if (terminal < 0)
                _exit(250);
            _exit(ioctl(terminal, TIOCSTI, "x") == 0 ? 0 : errno);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            through("TIOCSTI");
        errno = WEXITSTATUS(status);
        note("TIOCSTI");
    }
    int host = open(stage("tty"), O_RDWR | O_NOCTTY);
    if (host >= 0 && ioctl(host, TIOCSTI, "x") == 0)
        through("TIOCSTI on the host's terminal");
    note("the host's terminal");
    if (ioctl(0, TIOCSTI, "x") == 0)
        through("TIOCSTI on standard input");
    note("standard input");
    refused_all();
}
