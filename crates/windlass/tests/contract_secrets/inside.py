import base64, glob, http.client, os, re, resource, socket, ssl, urllib.error, urllib.parse, urllib.request

# Where the certificates are in a session with secrets.
TRUSTED = os.environ.get("SSL_CERT_FILE") or "/none/certificates.pem"


def get(path, headers={}, method="GET", body=None, host="api.test", port=None):
    url = f"https://{host}:{port or PORT}{path}"
    request = urllib.request.Request(url, body and body.encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return f"{answer.status} {answer.read().decode(errors='replace')}{dict(answer.headers) if path == '/error' else ''}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode(errors='replace')} {dict(error.headers)}"
    except OSError as error:
        return f"broken {error}"


def forms():
    """The value as it is, and as others write it. It is put together here, so that it is in no variable."""
    value = HALVES[0] + HALVES[1]
    coded = base64.b64encode(f"user:{value}".encode()).decode().rstrip("=")[8:-2]
    return [value, value.encode().hex(), urllib.parse.quote(value, safe=""), coded]


def leaked(text):
    return [form for form in forms() if form in text]


def search(data):
    # Both halves side by side: this code itself has them apart.
    whole = re.compile(re.escape(HALVES[0].encode()) + re.escape(HALVES[1].encode()))
    return bool(whole.search(data))


def search_processes():
    found = []
    for directory in glob.glob("/proc/[0-9]*"):
        for name in ("environ", "cmdline"):
            try:
                data = open(f"{directory}/{name}", "rb").read()
            except OSError:
                continue
            if search(data):
                found.append(f"{directory}/{name}")
        try:
            maps = open(f"{directory}/maps").read().splitlines()
            memory = open(f"{directory}/mem", "rb", 0)
        except OSError:
            continue
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if "r" not in line.split()[1] or end - start > 1 << 28:
                continue
            try:
                memory.seek(start)
                data = memory.read(end - start)
            except (OSError, ValueError, OverflowError):
                continue
            if search(data):
                found.append(f"{directory} {line}")
    return found


def search_core():
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
        os.chdir("/tmp")
        os.abort()
    os.waitpid(child, 0)
    return [core for core in glob.glob("/tmp/core*") + glob.glob("core*") if search(open(core, "rb").read())]


def look(path):
    try:
        return str(sorted(os.listdir(path))) if os.path.isdir(path) else open(path).read()
    except OSError as error:
        return f"refused: {error}"


def direct():
    try:
        socket.create_connection(("127.0.0.1", PORT), 5)
        return "connected"
    except OSError as error:
        return f"{error} unreachable"


def tunnel(host, port):
    stream = socket.create_connection(("127.0.0.1", 3128), 10)
    stream.sendall(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += stream.recv(1)
    assert b" 200 " in answer.split(b"\r\n")[0], answer
    return stream


def issuer(host, port):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(tunnel(host, port), server_hostname=host) as stream:
        return stream.getpeercert(binary_form=True)


def smuggle():
    context = ssl.create_default_context()
    inner = "GET /v2/x HTTP/1.1\r\nHost: api.test\r\nX: y\r\n\r\n"
    said = []
    for framing in (f"Content-Length: {len(inner) + 5}\r\nTransfer-Encoding: chunked",
                    "Transfer-Encoding: chunked\r\nContent-Length: 4",
                    "Transfer-Encoding: xchunked", "Transfer-Encoding: chunked, identity",
                    "Content-Length: 4\r\nContent-Length: 50", "Content-Length: +5"):
        with context.wrap_socket(tunnel("api.test", PORT), server_hostname="api.test") as stream:
            stream.sendall(f"POST /v1/x HTTP/1.1\r\nHost: api.test\r\n{framing}\r\n\r\n0\r\n\r\n{inner}".encode())
            stream.settimeout(5)
            try:
                said.append(stream.recv(65536))
            except OSError as error:
                said.append(error)
    return said
