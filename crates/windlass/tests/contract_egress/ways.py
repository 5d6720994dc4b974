"""Ways to ask a host for its words. Each says what came of it in one line."""
import http.client, os, socket, ssl, urllib.error, urllib.parse, urllib.request

socket.setdefaulttimeout(20)
named = urllib.parse.urlsplit(os.environ.get("http_proxy", ""))
PROXY = (named.hostname, named.port)

def by_urllib(host, port):
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/") as answer:
            return f"{answer.status} {answer.read().decode()}"
    except urllib.error.HTTPError as refused:
        return f"{refused.code} {refused.reason}"

def by_tunnel_of_the_library(host, port):
    client = http.client.HTTPConnection(*PROXY)
    client.set_tunnel(host, port)
    try:
        client.request("GET", "/")
    except OSError as refused:
        return str(refused).removeprefix("Tunnel connection failed: ")
    answer = client.getresponse()
    return f"{answer.status} {answer.read().decode()}"

# With these, nothing stands between the test and the proxy: no list of exceptions, no parser.

def read_answer(connection):
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    words = answer.read().decode() if answer.status == 200 else answer.reason
    return f"{answer.status} {words}"

def ask(connection, host, port, headers=()):
    lines = ["GET / HTTP/1.1", *(headers or [f"Host: {host}:{port}"]), "", ""]
    connection.sendall("\r\n".join(lines).encode())
    return read_answer(connection)

def by_whole_uri(host, port, headers=()):
    connection = socket.create_connection(PROXY)
    lines = [f"GET http://{host}:{port}/ HTTP/1.1", *(headers or [f"Host: {host}:{port}"]), "", ""]
    connection.sendall("\r\n".join(lines).encode())
    return read_answer(connection)

def connect(host, port):
    connection = socket.create_connection(PROXY)
    connection.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            break
        head += byte
    status = head.decode().split("\r\n")[0].removeprefix("HTTP/1.1 ")
    return connection if status.startswith("200") else status

def socks(host, port):
    connection = socket.create_connection(PROXY)
    connection.sendall(b"\x05\x01\x00")
    assert connection.recv(2) == b"\x05\x00"
    if isinstance(host, bytes):
        place = bytes([{4: 1, 16: 4}[len(host)]]) + host
    else:
        name = host.strip("[]").encode()
        place = b"\x03" + bytes([len(name)]) + name
    connection.sendall(b"\x05\x01\x00" + place + port.to_bytes(2, "big"))
    reply = connection.recv(10)
    return connection if reply[1] == 0 else f"reply {reply[1]}"

def by_connect(host, port, headers=()):
    tunnel = connect(host, port)
    return tunnel if isinstance(tunnel, str) else ask(tunnel, host, port, headers)

def by_socks(host, port, headers=()):
    tunnel = socks(host, port)
    return tunnel if isinstance(tunnel, str) else ask(tunnel, host, port, headers)

def hello(name):
    context = ssl.create_default_context()
    said = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), said, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        return said.read()

def whole(hello):
    return [hello]

def late(hello):
    return [hello[:5], hello[5:]]

def in_two_records(hello):
    body = hello[5:]
    parts = [body[:40], body[40:]]
    return [hello[:3] + len(part).to_bytes(2, "big") + part for part in parts]

def greet(opened_by, host, port, parts):
    tunnel = opened_by(host, port)
    tunnel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    echo, sent = b"", b"".join(parts)
    try:
        for part in parts:
            tunnel.sendall(part)
        while len(echo) < len(sent):
            more = tunnel.recv(65536)
            if not more:
                break
            echo += more
    except ConnectionError:
        pass
    return f"passed {len(sent)}" if echo == sent else f"closed after {len(echo)} bytes"

def directly(host, port):
    try:
        connection = socket.create_connection((host, port), 5)
        return ask(connection, host, port)
    except OSError as refused:
        return f"no way: {refused}"

def by_datagram(host, port):
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"from inside", (host, port))
        return "sent"
    except OSError as refused:
        return f"no way: {refused}"
