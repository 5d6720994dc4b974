"""A host that speaks TLS, for the tests of secrets. It answers in the ways by which a value could come back.

Arguments: certificate, key, log. Prints its port. The log has a line of JSON for each request.
"""

import base64
import gzip
import http.server
import json
import pathlib
import ssl
import sys
import urllib.parse

certificate, key, log, files = sys.argv[1:]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    memory = {}

    def handle_one(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length).decode("utf-8", "replace")
        seen = {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body}
        with open(log, "a") as out:
            out.write(json.dumps(seen) + "\n")
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        echo = json.dumps(seen).encode()
        secret = (self.headers.get("authorization") or "").removeprefix("Bearer ")
        if secret:
            self.memory["last"] = secret
        if url.path == "/redirect":
            return self.answer(302, b"", {"location": query["to"] + "?k=" + secret})
        if url.path == "/gzip":
            return self.answer(200, gzip.compress(echo), {"content-encoding": "gzip"})
        if url.path == "/error":
            page = f"<h1>Error</h1> bad token {secret} in {dict(self.headers)}".encode()
            return self.answer(500, page, {"x-token": secret})
        if url.path == "/coded":
            coded = [base64.b64encode(f"user:{secret}".encode()).decode(), secret.encode().hex(),
                     urllib.parse.quote(secret, safe=""), json.dumps(secret)]
            return self.answer(200, "\n".join(coded).encode())
        if url.path == "/last":
            last = self.memory.get("last", "").encode()
            return self.answer(200, last)
        if url.path == "/cut":
            # The value in pieces of one byte each.
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for byte in secret.encode():
                self.wfile.write(b"1\r\n" + bytes([byte]) + b"\r\n")
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
            return None
        if url.path.startswith("/files/"):
            if not secret:
                return self.answer(401, b"", {"www-authenticate": "Basic realm=x"})
            file = pathlib.Path(files) / url.path.removeprefix("/files/")
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                return self.answer(404, b"")
            return self.answer(200, file.read_bytes(), {"content-type": kind(file)})
        return self.answer(200, echo, {"content-type": "application/json"})

    do_GET = do_POST = do_PUT = do_HEAD = handle_one

    def answer(self, status, body, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def kind(file):
    return {".html": "text/html", ".json": "application/json"}.get(file.suffix, "application/octet-stream")


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        pass  # Clients that refuse the certificate are part of the tests.


server = Server(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
print(server.server_address[1], flush=True)
server.serve_forever()
