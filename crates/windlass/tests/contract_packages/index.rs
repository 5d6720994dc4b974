//! A package index of the tests' own on loopback.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use windlass_testkit::python;

/// Makes the wheel of a package with one module and a program that calls its `main`, and its page in the index: the arguments are the directory, the name and
/// the module's text.
const MAKE_PACKAGE: &str = r#"
import pathlib, sys, zipfile
root, name, text = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
page = root / "simple" / name
page.mkdir(parents=True)
wheel = f"{name}-1.0-py3-none-any.whl"
with zipfile.ZipFile(page / wheel, "w") as archive:
    archive.writestr(f"{name}.py", text)
    info = f"{name}-1.0.dist-info"
    archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name} = {name}:main\n")
    archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/entry_points.txt,,\n{info}/RECORD,,\n")
(page / "index.html").write_text(f"<a href='{wheel}'>{wheel}</a>")
"#;

/// A package index on loopback.
pub struct Index {
    server: Child,
    pub port: u16,
    _files: tempfile::TempDir,
}

impl Index {
    pub fn start(packages: &[(&str, &str)]) -> Self {
        let files = tempfile::tempdir().unwrap();
        for (name, text) in packages {
            let mut make = Command::new(python());
            make.args(["-c", MAKE_PACKAGE]).arg(files.path()).args([name, text]);
            assert!(make.status().unwrap().success());
        }
        // The server gets a socket that listens already.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = "import http.server, os, socket, sys\n\
             os.chdir(sys.argv[1])\n\
             class Server(http.server.ThreadingHTTPServer):\n\
            \x20   def server_bind(self): self.socket = socket.socket(fileno=0)\n\
            \x20   def server_activate(self): pass\n\
             Server(('', 0), http.server.SimpleHTTPRequestHandler).serve_forever()";
        let server = Command::new(python())
            .args(["-c", serve])
            .arg(files.path())
            .stdin(std::os::fd::OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { server, port, _files: files }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/simple", self.port)
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
