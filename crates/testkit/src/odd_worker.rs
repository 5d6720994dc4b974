//! Workers that misbehave on purpose: scripts that take the place of an interpreter and speak the worker
//! protocol themselves, with the faults that a test needs.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use windlass_client::protocol::api::CreateSession;

use crate::python::python;

/// Functions of every odd worker: `frame` builds a message, `send` writes messages in one call, `ready` sends
/// `worker_ready`, `read_frame` waits for a message, `turns` yields each turn as `(number, code)`. SIGINT is
/// ignored; a script that handles interrupts reads them as frames.
const PRELUDE: &str = r#"
import json, os, select, signal, socket, struct, sys, time

signal.signal(signal.SIGINT, signal.SIG_IGN)
sock = socket.socket(fileno=int(os.environ["WINDLASS_FD"]))
sock.set_inheritable(False)

def raw(header, body=b""):
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body

def frame(kind, body=b"", **fields):
    return raw(json.dumps({"kind": kind, **fields}).encode(), body)

def send(*frames):
    sock.sendall(b"".join(frames))

def ready():
    send(frame("worker_ready", protocol=1, worker="odd 1", capabilities=[]))

def out(turn, text, **fields):
    return frame("output", text.encode(), turn=turn, stream="stdout", **fields)

def idle(turn, outcome="ok"):
    return frame("idle", turn=turn, outcome=outcome)

def read(count):
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            os._exit(0)
        data += part
    return data

def read_frame():
    data = read(struct.unpack(">I", read(4))[0])
    end = 4 + struct.unpack(">I", data[:4])[0]
    return json.loads(data[4:end]), data[end:]

def turns():
    code = b""
    while True:
        header, body = read_frame()
        if header["kind"] == "shutdown":
            os._exit(0)
        if header["kind"] == "turn_start":
            code += body
            if not header.get("more"):
                whole, code = code.decode(), b""
                yield header["turn"], whole
"#;

/// Writes a worker script to the directory `place`, and returns a request for a session that uses it.
pub fn odd_worker(place: &Path, name: &str, script: &str) -> io::Result<CreateSession> {
    let path = place.join(format!("{name}.py"));
    std::fs::write(&path, format!("#!{}\n{PRELUDE}\n{script}", python().display()))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    let interpreter = Some(path.to_string_lossy().into_owned());
    Ok(CreateSession { interpreter, ..CreateSession::default() })
}
