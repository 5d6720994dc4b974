"""A terminal for the test of a full-screen program: starts the program, keeps what its screen shows, and does what the
lines of standard input say. Each line is a JSON object and gets a JSON object as its answer.

It knows only the escape sequences that `windlass top` writes, and reports each other one.
"""

import codecs
import fcntl
import json
import os
import re
import select
import signal
import struct
import sys
import termios
import time

PATIENCE_S = 30
TOKEN = re.compile(r"\x1b\[([0-9;?]*)([@-~])|([^\x1b])", re.DOTALL)
KNOWN = "HJmhl"


class Screen:
    def __init__(self):
        self.rows, self.columns = 24, 80
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.unread = ""
        self.foreign = []
        self.is_alternate = False
        self.was_alternate = False
        self.is_cursor_shown = True
        self.clear()

    def clear(self):
        self.cells, self.x, self.y = {}, 0, 0

    def lines(self):
        rows = range(self.rows)
        return ["".join(self.cells.get((x, y), " ") for x in range(self.columns)).rstrip() for y in rows]

    def feed(self, data):
        self.unread += self.decoder.decode(data)
        while self.unread:
            token = TOKEN.match(self.unread)
            if token is None:
                if re.match(r"\x1b(\[[0-9;?]*)?$", self.unread):
                    return
                self.foreign.append(self.unread[:20])
                self.unread = self.unread[1:]
                continue
            self.unread = self.unread[token.end():]
            parameters, final, char = token.groups()
            if char is None:
                self.control(parameters, final)
            elif char == "\n":
                self.y += 1
            elif char == "\r":
                self.x = 0
            elif char >= " ":
                self.cells[self.x, self.y] = char
                self.x += 1
            else:
                self.foreign.append(char)

    def control(self, parameters, final):
        if final == "H":
            row, column = (parameters.split(";") + ["1"])[:2] if parameters else ("1", "1")
            self.x, self.y = int(column) - 1, int(row) - 1
        elif final == "J":
            self.clear()
        elif final in "hl" and parameters == "?1049":
            self.is_alternate = final == "h"
            self.was_alternate |= self.is_alternate
            self.clear()
        elif final in "hl" and parameters == "?25":
            self.is_cursor_shown = final == "h"
        elif final != "m":
            self.foreign.append(f"CSI {parameters}{final}")


class Program:
    def __init__(self, command):
        self.screen = Screen()
        self.master, self.slave = os.openpty()
        self.resize(24, 80)
        self.modes = termios.tcgetattr(self.slave)
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)
            for standard in range(3):
                os.dup2(self.slave, standard)
            os.execv(command[0], command)
        self.ended = os.pidfd_open(self.pid)

    def resize(self, rows, columns):
        self.screen.rows, self.screen.columns = rows, columns
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def pump(self, until):
        """Reads until the condition holds. Returns whether it came to hold in time."""
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            left = deadline - time.monotonic()
            sources = [self.ended] + ([self.master] if self.master is not None else [])
            ready = select.select(sources, [], [], max(left, 0))[0]
            if self.master in ready:
                self.screen.feed(os.read(self.master, 65536))
            elif self.ended in ready or left <= 0:
                return until()
        return True

    def obey(self, order):
        (what, value), = order.items()
        screen = self.screen
        if what == "see":
            ok = self.pump(lambda: any(value in line for line in screen.lines()))
            return {"ok": ok, "screen": screen.lines()}
        if what == "gone":
            ok = self.pump(lambda: not any(value in line for line in screen.lines()))
            return {"ok": ok, "screen": screen.lines()}
        if what == "alternate":
            ok = self.pump(lambda: screen.is_alternate == value)
            return {"ok": ok, "screen": screen.lines()}
        if what == "type":
            os.write(self.master, value.encode())
        elif what == "resize":
            self.resize(*value)
        elif what == "signal":
            signal.pidfd_send_signal(self.ended, value)
        elif what == "hang_up":
            os.close(self.master)
            self.master = None
        elif what == "end":
            return self.end()
        return {"ok": True}

    def end(self):
        deadline = time.monotonic() + PATIENCE_S
        status = None
        while status is None and time.monotonic() < deadline:
            self.pump(lambda: self.has_ended())
            pid, found = os.waitpid(self.pid, os.WNOHANG)
            status = found if pid == self.pid else None
        # What the program wrote last is still in the terminal.
        while self.master is not None and select.select([self.master], [], [], 0)[0]:
            self.screen.feed(os.read(self.master, 65536))
        screen = self.screen
        answer = {
            "code": None if status is None else os.waitstatus_to_exitcode(status),
            "is_alternate": screen.is_alternate,
            "was_alternate": screen.was_alternate,
            "is_cursor_shown": screen.is_cursor_shown,
            "foreign": screen.foreign,
            "screen": screen.lines(),
        }
        if self.master is not None:
            answer["has_same_modes"] = termios.tcgetattr(self.slave) == self.modes
        return answer

    def has_ended(self):
        return bool(select.select([self.ended], [], [], 0)[0])


def main():
    program = Program(sys.argv[1:])
    try:
        for line in sys.stdin:
            print(json.dumps(program.obey(json.loads(line))), flush=True)
    finally:
        # Nothing stays behind if the test has ended early.
        try:
            signal.pidfd_send_signal(program.ended, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
