"""HTTP requests by host calls: `urllib.request` and `pyodide.http`.

Owns the form of `host.http`: `method`, `url`, `headers` (a list of pairs) and `body` (base64, or
None) go out; `status`, `headers`, `body` and, after redirects, `url` come back.
"""

import io
import types
from base64 import b64decode, b64encode

# The largest body of a request or an answer.
BODY_BYTES_MAX = 11 * 1024 * 1024


def install(host, module):
    """`urllib.request` was imported."""

    class HostHandler(module.AbstractHTTPHandler):
        http_request = https_request = module.AbstractHTTPHandler.do_request_

        def http_open(self, request):
            headers = list({**request.headers, **request.unredirected_hdrs}.items())
            timeout = request.timeout if isinstance(request.timeout, (int, float)) else None
            return _opened(module, Fetched(host.call(
                *_arguments(request.get_method(), request.full_url, headers, _whole(request.data)), timeout
            ), request.full_url))

        https_open = http_open

    module.HTTPHandler = module.HTTPSHandler = HostHandler
    module.install_opener(module.build_opener())


class Fetched:
    """An answer."""

    def __init__(self, answer, url):
        if not isinstance(answer, dict) or not isinstance(answer.get("status"), int):
            raise OSError("the request of %s failed: the answer has an unknown form" % url)
        self.status = answer["status"]
        headers = answer.get("headers") or []
        self.headers = list(headers.items()) if isinstance(headers, dict) else [tuple(h) for h in headers]
        self.body = b64decode(answer.get("body") or "")
        self.url = answer.get("url") or url


class FetchResponse:
    """An answer, with the methods of `pyodide.http.FetchResponse` that need no JavaScript."""

    def __init__(self, fetched):
        self.url = fetched.url
        self.status = fetched.status
        self.status_text = _reason(fetched.status)
        self.headers = {name.lower(): value for name, value in fetched.headers}
        self.ok = 200 <= fetched.status < 300
        self._body = fetched.body

    def raise_for_status(self):
        if self.status >= 400:
            raise OSError("%d %s: %s" % (self.status, self.status_text, self.url))

    async def bytes(self):
        return self._body

    async def string(self):
        return self._body.decode("utf-8", "replace")

    text = string

    async def json(self, **options):
        import json

        return json.loads(self._body, **options)


def pyodide_http(host):
    """`pyodide.http`, which code for Pyodide expects, without the rest of the package."""

    async def pyfetch(url, *, method="GET", headers=None, body=None, **_options):
        """Fetch a URL."""
        given = list(dict(headers or {}).items())
        data = body.encode() if isinstance(body, str) else body
        answer = await host.call_later(*_arguments(method, url, given, data))
        return FetchResponse(Fetched(answer, url))

    def open_url(url):
        """Fetch a URL as text."""
        answer = host.call(*_arguments("GET", url, [], None))
        return io.StringIO(Fetched(answer, url).body.decode("utf-8", "replace"))

    package, http = types.ModuleType("pyodide"), types.ModuleType("pyodide.http")
    package.__path__ = []
    package.http = http
    http.pyfetch, http.open_url, http.FetchResponse = pyfetch, open_url, FetchResponse
    return {"pyodide": package, "pyodide.http": http}


def _arguments(method, url, headers, body):
    if body is not None and len(body) > BODY_BYTES_MAX:
        raise ValueError("a body of %d bytes is over the limit of %d" % (len(body), BODY_BYTES_MAX))
    text = None if body is None else b64encode(body).decode()
    values = {"method": method, "url": url, "headers": [list(pair) for pair in headers], "body": text}
    return "host.http", values, "the request of %s" % url


def _whole(data):
    if data is None or isinstance(data, (bytes, bytearray)):
        return data
    return data.read() if hasattr(data, "read") else b"".join(data)


def _opened(module, fetched):
    from email.message import Message

    headers = Message()
    for name, value in fetched.headers:
        headers[name] = value
    response = module.addinfourl(io.BytesIO(fetched.body), headers, fetched.url, fetched.status)
    response.msg = response.reason = _reason(fetched.status)
    return response


def _reason(status):
    from http import HTTPStatus

    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
