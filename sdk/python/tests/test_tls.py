"""TLS to a node, without a node: a stub server with the certificates in `tls`, which are valid until 2120.

`node.pem` is for localhost and 127.0.0.1, `elsewhere.pem` for another name, and `expired.pem` is of 2020. `ca.pem` is
the authority of all three, `other.pem` another one.
"""

import asyncio
import json
import os
import socket
import ssl
import threading
import time
import unittest
from pathlib import Path

import node
import test_websocket

import windlass
from windlass import TlsFailed, WindlassError, _address
from windlass import _calls as calls
from windlass._frames import LENGTHS
from windlass._tls import TlsSocket
from windlass._transport import Transport
from windlass._websocket import _GUID

HERE = Path(__file__).parent / "tls"
CA, OTHER = str(HERE / "ca.pem"), str(HERE / "other.pem")
TOKEN = "ab" * 32


def server_context(certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(HERE / certificate, HERE / "node-key.pem")
    return context


class Stub:
    """A TCP door that answers each request with its path, and keeps connections open. `certificate=None`: no TLS."""

    def __init__(self, certificate="node.pem"):
        self._context = server_context(certificate) if certificate else None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.connections = 0
        self.tokens = []
        #: What the tool hosts sent, as headers and bodies.
        self.frames = []
        self.heard = threading.Condition()
        self._threads = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def url(self, scheme="https", host="127.0.0.1"):
        return f"{scheme}://{host}:{self.port}"

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(node.PATIENCE)
        self._listener.close()
        for thread in self._threads:
            thread.join(node.PATIENCE)

    def _accept(self):
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(plain,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain):
        with plain:
            plain.settimeout(node.PATIENCE)
            if self._context is None:
                plain.recv(4096)
                plain.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                return
            if plain.recv(1, socket.MSG_PEEK) != b"\x16":
                # A node refuses what is not TLS with an alert, and ends the connection.
                plain.recv(65536)
                plain.sendall(b"\x15\x03\x03\x00\x02\x02\x32")
                return
            try:
                with self._context.wrap_socket(plain, server_side=True) as secure:
                    self._converse(secure)
            except OSError:
                pass  # The client has gone, or refused the certificate.

    def _converse(self, secure):
        pending = b""
        while True:
            while b"\r\n\r\n" not in pending:
                got = secure.recv(65536)
                if not got:
                    return
                pending += got
            head, _, pending = pending.partition(b"\r\n\r\n")
            lines = head.decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines[1:])
            key = next((line[19:] for line in lines if line.lower().startswith("sec-websocket-key: ")), "")
            self.tokens.append(headers["authorization"])
            length = int(headers.get("content-length", 0))
            while len(pending) < length:
                pending += secure.recv(65536)
            body, pending = pending[:length], pending[length:]
            if key:
                self._host(secure, key)
                return
            said = json.dumps({"path": lines[0].split()[1], "bytes": len(body)}).encode()
            if lines[0].startswith("GET /v1/large"):
                said = b"x" * 3_000_000
            answer = f"HTTP/1.1 200 OK\r\nwindlass-api: 1.0\r\ncontent-length: {len(said)}\r\n\r\n"
            secure.sendall(answer.encode() + said)

    def _host(self, secure, key):
        import base64
        import hashlib

        accept = base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()
        secure.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nwindlass-api: 1.0\r\nconnection: upgrade\r\n"
            b"upgrade: websocket\r\nsec-websocket-accept: " + accept.encode() + b"\r\n\r\n"
        )
        far = Far(secure)
        secure.sendall(test_websocket.sent(frame({"kind": "welcome", "api": "1.0", "node": "stub"})))
        while True:
            header, body = far.frame()
            if header["kind"] == "tools" and not header.get("more"):
                secure.sendall(test_websocket.sent(frame({"kind": "tools_accepted", "count": 1})))
                for number in range(20):
                    call = {"kind": "tool_call", "session": "s", "turn": 1, "call": number, "name": "twice"}
                    arguments = json.dumps({"text": "ab" * 10_000}).encode()
                    message = frame({**call, "deadline_ms": 60_000}, arguments)
                    secure.sendall(test_websocket.sent(message))
            with self.heard:
                self.frames.append((header, body))
                self.heard.notify_all()


class Far:
    """Reads the frames of a tool host as a node does."""

    def __init__(self, secure):
        self._secure = secure

    def _read(self, count):
        data = b""
        while len(data) < count:
            got = self._secure.recv(count - len(data))
            if not got:
                raise ConnectionError
            data += got
        return data

    def frame(self):
        first, length = self._read(2)
        if first == 0x88:
            raise ConnectionError
        length &= 0x7F
        if length >= 126:
            length = int.from_bytes(self._read(2 if length == 126 else 8), "big")
        key, data = self._read(4), self._read(length)
        data = bytes(byte ^ key[at % 4] for at, byte in enumerate(data))
        rest, size = LENGTHS.unpack_from(data)
        assert rest + 4 == len(data)
        return json.loads(data[8 : 8 + size]), data[8 + size :]


def frame(header, body=b""):
    said = json.dumps(header).encode()
    return LENGTHS.pack(4 + len(said) + len(body), len(said)) + said + body


class OverTls(unittest.TestCase):
    def setUp(self):
        for name in ("WINDLASS_URL", "WINDLASS_TOKEN", "WINDLASS_CA"):
            self.addCleanup(_restore, name, os.environ.pop(name, None))

    def stub(self, certificate="node.pem"):
        stub = Stub(certificate)
        self.addCleanup(stub.close)
        return stub

    def transport(self, url, ca=CA):
        transport = Transport(_address.find(url, TOKEN, True, ca), retry_for=0)
        self.addCleanup(transport.close)
        return transport

    def refused(self, url, ca=CA):
        with self.assertRaises(TlsFailed) as caught:
            windlass.Windlass(url=url, token=TOKEN, ca=ca)
        error = caught.exception

        async def first():
            async with windlass.AsyncWindlass(url=url, token=TOKEN, ca=ca):
                self.fail("the node was accepted")

        with self.assertRaises(TlsFailed) as caught:
            asyncio.run(first())
        self.assertEqual((caught.exception.code, str(caught.exception)), (error.code, str(error)))
        return error

    def test_requests_share_a_connection_to_a_node_whose_authority_is_known(self):
        for host in ("127.0.0.1", "localhost"):
            stub = self.stub()
            with windlass.Windlass(url=stub.url(host=host), token=TOKEN, ca=CA) as client:
                for _ in range(5):
                    self.assertEqual(client.status()["path"], "/v1/version")
            self.assertEqual(stub.connections, 1)
            self.assertEqual(set(stub.tokens), {f"bearer {TOKEN}"})

    def test_the_environment_names_the_authority(self):
        stub = self.stub()
        os.environ.update(WINDLASS_URL=stub.url(), WINDLASS_TOKEN=TOKEN, WINDLASS_CA=CA)
        with windlass.Windlass() as client:
            client.status()
        os.environ["WINDLASS_CA"] = OTHER
        with self.assertRaises(TlsFailed):
            windlass.Windlass()
        # An argument is more specific than the environment.
        windlass.Windlass(ca=CA).close()

    def test_large_bodies_pass_in_both_directions(self):
        transport = self.transport(self.stub().url())
        answer = transport.call(calls.Call("PUT", "/v1/x", body=os.urandom(2_000_000)))
        self.assertEqual(json.loads(answer.body)["bytes"], 2_000_000)
        answer = transport.call(calls.Call("GET", "/v1/large"))
        self.assertEqual(len(answer.body), 3_000_000)

    def test_the_async_client_uses_tls(self):
        stub = self.stub()

        async def ask():
            async with windlass.AsyncWindlass(url=stub.url(), token=TOKEN, ca=CA) as client:
                return [(await client.status())["path"] for _ in range(3)]

        self.assertEqual(asyncio.run(ask()), ["/v1/version"] * 3)
        self.assertEqual(stub.connections, 1)

    def test_an_unknown_authority_is_refused_and_told(self):
        stub = self.stub()
        error = self.refused(stub.url(), OTHER)
        self.assertEqual(error.code, "bad_certificate")
        self.assertIn(f"{OTHER} (WINDLASS_CA) names", error.message)
        # Without a file the authorities of this machine count.
        error = self.refused(stub.url(), None)
        self.assertIn("this machine trusts", error.message)
        self.assertIn("set WINDLASS_CA", error.remedy)
        self.assertEqual(stub.tokens, [], "no request was sent")

    def test_a_certificate_that_does_not_fit_is_refused_with_its_reason(self):
        for certificate, why in (("elsewhere.pem", "is for another name"), ("expired.pem", "has expired")):
            for host in ("127.0.0.1", "localhost"):
                stub = self.stub(certificate)
                error = self.refused(stub.url(host=host))
                self.assertEqual(error.code, "bad_certificate")
                self.assertIn(why, error.message)
                self.assertEqual(stub.tokens, [])

    def test_the_wrong_scheme_is_told(self):
        stub = self.stub()
        self.assertIn("https://", self.refused(stub.url("http")).remedy)
        self.assertEqual(stub.tokens, [])
        plain = self.stub(None)
        error = self.refused(plain.url("https"))
        self.assertEqual(error.code, "wrong_scheme")
        self.assertIn(plain.url("http"), error.remedy)

    def test_a_file_without_authorities_is_refused(self):
        url = self.stub().url()
        for ca in ("/nowhere/ca.pem", str(HERE / "node-key.pem"), __file__):
            with self.assertRaises(TlsFailed) as caught:
                windlass.Windlass(url=url, token=TOKEN, ca=ca)
            self.assertEqual(caught.exception.code, "bad_ca")
            self.assertIn(ca, caught.exception.message)
        # Without TLS the file is not read.
        self.assertIsNone(_address.find("http://127.0.0.1:1", TOKEN, True, "/nowhere/ca.pem").tls)

    def test_a_silent_server_does_not_hold_the_handshake_for_ever(self):
        near, far = socket.socketpair()
        with near, far:
            secure = TlsSocket(near, _address._tls.context(CA), "localhost")
            with node.within(10), self.assertRaises(TimeoutError):
                secure.handshake(time.monotonic() + 0.1)

    def test_a_late_answer_ends_with_a_timeout(self):
        near, far = socket.socketpair()
        with near, far:
            shaking = node.in_thread(lambda: server_context("node.pem").wrap_socket(far, server_side=True))
            secure = TlsSocket(near, _address._tls.context(CA), "localhost")
            secure.handshake(time.monotonic() + node.PATIENCE)
            with shaking():
                from windlass._transport import Connection

                connection = Connection(secure)
                self.assertTrue(connection.is_open())
                connection.wait_at_most(0.05)
                with node.within(10), self.assertRaises(BlockingIOError):
                    secure.recv(1)

    def test_urls_have_one_of_two_schemes(self):
        for url, expected in (
            ("https://127.0.0.1:8040", ("127.0.0.1", 8040, True)),
            ("https://node.example/", ("node.example", 443, True)),
            ("https://[::1]:1", ("::1", 1, True)),
            ("http://node.example", ("node.example", 80, False)),
        ):
            self.assertEqual(_address._parts(url), expected)
        for url in ("wss://node.example", "https://localhost:secret@node.example", "https://node.example/v1", "https://"):
            with self.assertRaises(WindlassError) as caught:
                _address._parts(url)
            self.assertNotIn("secret", str(caught.exception))

    def test_a_tool_host_answers_in_tls(self):
        stub = self.stub()
        with windlass.Windlass(url=stub.url(), token=TOKEN, ca=CA) as client:

            def twice(text: str) -> str:
                "Repeats."
                return text * 2

            host = client.tools(twice, owner="me")
            end = time.monotonic() + node.PATIENCE
            with stub.heard:
                while sum(1 for header, _ in stub.frames if header["kind"] == "tool_result") < 20:
                    self.assertTrue(stub.heard.wait(end - time.monotonic()), "the answers did not come")
            host.close()
        results = [(header, body) for header, body in stub.frames if header["kind"] == "tool_result"]
        self.assertEqual({header["call"] for header, _ in results}, set(range(20)))
        for header, body in results:
            self.assertTrue(header["ok"])
            self.assertEqual(json.loads(body), "ab" * 20_000)


class TlsWebSockets(test_websocket.WebSockets):
    """The WebSocket of tool hosts in TLS: everything as without."""

    def setUp(self):
        far, near = socket.socketpair()
        self.addCleanup(near.close)
        shaking = node.in_thread(lambda: server_context("node.pem").wrap_socket(far, server_side=True))
        self.near = TlsSocket(near, _address._tls.context(CA), "localhost")
        self.near.handshake(time.monotonic() + node.PATIENCE)
        self.far = shaking()
        self.far.settimeout(10)
        self.addCleanup(self.far.close)

    def test_an_end_without_a_word_is_an_end(self):
        web = self.socket()
        self.far.close()
        with self.assertRaises(ConnectionError):
            web.receive()

    def test_reading_and_writing_at_the_same_time_mix_nothing(self):
        web = self.socket(mask=False)
        payloads = [os.urandom(size) for size in (1, 20_000, 70_000, 5, 150_000) * 8]

        def far():
            for payload in payloads:
                self.far.sendall(sent(payload))
                self.assertEqual(self.heard(), (0x82, payload))

        def write():
            for payload in payloads:
                web.send(b"", payload)

        talking, writing = node.in_thread(far), node.in_thread(write)
        got = []
        while len(got) < len(payloads):
            message = web.receive()
            if message is not None:
                got.append(bytes(message))
        talking()
        writing()
        self.assertEqual(got, payloads)


sent = test_websocket.sent


def _restore(name, value):
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


if __name__ == "__main__":
    unittest.main()
