"""Programs by host calls: `subprocess` and `os.system`.

Owns the form of `host.run`: `args` (a list, or a text for a shell), `cwd`, `env` and `input` (base64)
go out; `returncode`, `stdout` and `stderr` (base64) come back. A program runs to its end when the
code first waits for it: there is no exchange with a running program.
"""

import io
import sys
from base64 import b64decode, b64encode


def install(host, subprocess, os):
    class Popen:
        """A program that the client of this session runs."""

        def __init__(self, args, bufsize=-1, executable=None, stdin=None, stdout=None, stderr=None, *,
                     shell=False, cwd=None, env=None, text=None, encoding=None, errors=None,
                     universal_newlines=None, **_options):
            self.args = args
            self.returncode = None
            self.pid = 0
            self._arguments = {"args": _plain(args, os), "shell": bool(shell),
                               "cwd": None if cwd is None else os.fspath(cwd), "env": env}
            self._to = stdout, stderr
            self._decoding = None
            if text or encoding or errors or universal_newlines:
                self._decoding = encoding or "utf-8", errors or "strict"
            self.stdin = io.BytesIO() if stdin == subprocess.PIPE else None
            self.stdout = self.stderr = None
            self._answer = None
            if stdin != subprocess.PIPE:
                self._run(b"" if stdin is None or isinstance(stdin, int) else _read(stdin), None)

        def communicate(self, input=None, timeout=None):
            if self._answer is None:
                given = self.stdin.getvalue() if input is None else input
                self._run(given.encode() if isinstance(given, str) else given, timeout)
            return self._out, self._err

        def wait(self, timeout=None):
            self.communicate(timeout=timeout)
            return self.returncode

        def poll(self):
            return self.returncode

        def kill(self):
            """The program has ended already."""

        terminate = kill

        def send_signal(self, _signal):
            """The program has ended already."""

        def __enter__(self):
            return self

        def __exit__(self, *_error):
            return None

        def _run(self, given, timeout):
            what = "running %s" % (self.args if isinstance(self.args, str) else " ".join(map(str, self.args)))
            values = {**self._arguments, "input": b64encode(given or b"").decode()}
            try:
                answer = host.call("host.run", values, what, timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout) from None
            if not isinstance(answer, dict) or not isinstance(answer.get("returncode"), int):
                raise OSError("%s failed: the answer has an unknown form" % what)
            self._answer = answer
            self.returncode = answer["returncode"]
            out, err = (b64decode(answer.get(name) or "") for name in ("stdout", "stderr"))
            to_out, to_err = self._to
            if to_err == subprocess.STDOUT:
                out, err, to_err = out + err, b"", None
            self._out = _give(out, to_out, sys.stdout, self._decoding, subprocess.PIPE)
            self._err = _give(err, to_err, sys.stderr, self._decoding, subprocess.PIPE)
            if self._out is not None:
                self.stdout = io.StringIO(self._out) if self._decoding else io.BytesIO(self._out)
            if self._err is not None:
                self.stderr = io.StringIO(self._err) if self._decoding else io.BytesIO(self._err)

    def system(command):
        """Run a command in a shell, by the client of this session."""
        return Popen(command, shell=True).wait() << 8

    subprocess.Popen = Popen
    os.system = system


def _give(data, to, stream, decoding, pipe):
    """The output, if the code wants it; else pass it on."""
    if to == pipe:
        return data.decode(*decoding) if decoding else data
    if to is None:
        stream.write(data.decode("utf-8", "replace"))
    elif not isinstance(to, int):
        getattr(to, "buffer", to).write(data)
    return None


def _plain(args, os):
    if isinstance(args, (str, bytes)):
        return os.fsdecode(args)
    return [os.fsdecode(os.fspath(argument)) for argument in args]


def _read(stream):
    data = stream.read()
    return data.encode() if isinstance(data, str) else data
