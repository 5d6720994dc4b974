"""Checks `windlass mcp` with the client of the official Python SDK, in its newest or its older version, and
prints one JSON object per check. The checks read results in their wire form, which both versions share.

Arguments: the program, the MCP revision to negotiate.
"""

import base64
import json
import os
import struct
import sys
import time
from contextlib import asynccontextmanager

import anyio
import jsonschema
import mcp
from mcp import StdioServerParameters

PROGRAM, REVISION = sys.argv[1:3]
TOOLS = {"run", "continue", "interrupt", "reset", "sessions", "read_output"}

# How long one check may take.
CHECKED_WITHIN_S = 30

# How long the turn after a cancelled turn may take. The cancelled turn itself would take far longer.
STOPPED_WITHIN_S = 10

PICTURE = r"""
import struct, zlib
def chunk(kind, body):
    return struct.pack('>I', len(body)) + kind + body + struct.pack('>I', zlib.crc32(kind + body))
class Picture:
    def _repr_png_(self):
        head = chunk(b'IHDR', struct.pack('>IIBBBBB', 40, 30, 8, 2, 0, 0, 0))
        body = chunk(b'IDAT', zlib.compress((b'\0' + b'\xff\0\0' * 40) * 30))
        return b'\x89PNG\r\n\x1a\n' + head + body + chunk(b'IEND', b'')
Picture()
"""
SLOW = "import time\nfor n in range(8):\n    print('step', n, flush=True)\n    time.sleep(0.5)\n"
ENDLESS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"
LONG = "for n in range(40000): print('line', n)\n"


class Newer:
    """The client of the newest SDK version."""

    def __init__(self, client):
        self._client = client
        self.revision = client.protocol_version

    async def tools(self):
        return wire(await self._client.list_tools())["tools"]

    async def call(self, tool, arguments, progress=None):
        result = await self._client.call_tool(tool, arguments, progress_callback=progress)
        return wire(result)

    async def read(self, uri):
        return wire(await self._client.read_resource(uri))

    async def cancelled_by(self, begun, arguments):
        """Calls `run` and cancels the call when its first progress arrives."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.call, "run", arguments, begun.tell)
            await begun.wait()
            group.cancel_scope.cancel()


class Older(Newer):
    """The session of the older SDK version: cancelling the task does not cancel the call on the server."""

    def __init__(self, session, initialized):
        self._client = session
        self.revision = initialized.protocolVersion

    async def cancelled_by(self, begun, arguments):
        request = self._client._request_id
        async with anyio.create_task_group() as group:
            group.start_soon(self.call, "run", arguments, begun.tell)
            await begun.wait()
            cancelled = mcp.types.CancelledNotification(
                method="notifications/cancelled",
                params=mcp.types.CancelledNotificationParams(requestId=request),
            )
            await self._client.send_notification(mcp.types.ClientNotification(cancelled))
            group.cancel_scope.cancel()


class Begun:
    """An event that the first progress notification sets."""

    def __init__(self):
        self.count = 0
        self._event = anyio.Event()

    async def tell(self, *_progress):
        self.count += 1
        self._event.set()

    async def wait(self):
        with anyio.fail_after(STOPPED_WITHIN_S):
            await self._event.wait()


@asynccontextmanager
async def connected():
    # By default the SDK passes only a few variables, without those of the node's directories.
    server = StdioServerParameters(command=PROGRAM, args=["mcp"], env=dict(os.environ))
    if hasattr(mcp, "Client"):
        async with mcp.Client(server) as client:
            yield Newer(client)
    else:
        from mcp.client.stdio import stdio_client

        async with stdio_client(server) as streams, mcp.ClientSession(*streams) as session:
            yield Older(session, await session.initialize())


def wire(result):
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def text_of(result):
    return "\n".join(part["text"] for part in result["content"] if part["type"] == "text")


def need(condition, *seen):
    if not condition:
        raise AssertionError(" ".join(str(one) for one in seen)[:1000])


class Checks:
    """Each check is a method. The checks depend on each other and run in this order."""

    def __init__(self, client):
        self.client = client
        self.schema = None

    async def run(self, code, **more):
        return await self.client.call("run", {"code": code, **more})

    async def revision(self):
        need(self.client.revision == REVISION, self.client.revision)

    async def tools(self):
        tools = {tool["name"]: tool for tool in await self.client.tools()}
        need(set(tools) == TOOLS, sorted(tools))
        need(all(tool.get("description") for tool in tools.values()), tools)
        need(all("annotations" in tool for tool in tools.values()), tools)
        self.schema = tools["run"]["outputSchema"]

    async def code(self):
        result = await self.run("x = 41; print('set', x)")
        need("set 41" in text_of(result) and not result.get("isError"), result)

    async def structured(self):
        result = await self.run("x + 1")
        structured = result["structuredContent"]
        jsonschema.validate(structured, self.schema)
        need(structured["state"] == "done", structured)
        # A schema that accepts everything would prove nothing.
        try:
            jsonschema.validate({"state": 1}, self.schema)
        except jsonschema.ValidationError:
            return
        raise AssertionError("the output schema accepts everything")

    async def variable(self):
        result = await self.run("x + 1")
        need("42" in text_of(result), result)

    async def picture(self):
        result = await self.run(PICTURE)
        images = [part for part in result["content"] if part["type"] == "image"]
        need(len(images) == 1 and images[0]["mimeType"] == "image/png", result)
        data = base64.b64decode(images[0]["data"])
        need(struct.unpack(">II", data[16:24]) == (40, 30), data[:24])

    async def exception(self):
        result = await self.run("1/0")
        need(result.get("isError") is True and "ZeroDivisionError" in text_of(result), result)

    async def progress(self):
        begun = Begun()
        result = await self.client.call("run", {"code": SLOW}, begun.tell)
        need(begun.count > 0, "no progress")
        need("step 7" in text_of(result), result)

    async def cancel(self):
        await self.client.cancelled_by(Begun(), {"code": ENDLESS})
        with anyio.fail_after(STOPPED_WITHIN_S):
            result = await self.run("print('kept', x)")
        need(result["structuredContent"]["state"] == "done", result)
        need("kept 41" in text_of(result), result)

    async def resource(self):
        result = await self.run(LONG)
        need(result["structuredContent"].get("omitted_bytes", 0) > 0, result["structuredContent"])
        links = [part for part in result["content"] if part["type"] == "resource_link"]
        need(len(links) == 1, [part["type"] for part in result["content"]])
        contents = (await self.client.read(links[0]["uri"]))["contents"]
        whole = "".join(part.get("text", "") for part in contents)
        need("line 20000\n" in whole, len(whole))

    async def sessions(self):
        session = (await self.run("None"))["structuredContent"]["session"]
        listed = await self.client.call("sessions", {})
        need(session in json.dumps(listed["structuredContent"]), session, listed)


CHECKS = {
    "the revision is negotiated": Checks.revision,
    "the tools are listed": Checks.tools,
    "code runs": Checks.code,
    "structured content matches the output schema": Checks.structured,
    "a variable is kept": Checks.variable,
    "a picture is image content": Checks.picture,
    "an exception is a tool error": Checks.exception,
    "a long turn reports progress": Checks.progress,
    "a cancelled call stops its turn": Checks.cancel,
    "the full output is a resource": Checks.resource,
    "the session is listed": Checks.sessions,
}


def words_of(error):
    """The text of an error. Unwraps the exception groups of task groups."""
    while getattr(error, "exceptions", None):
        error = error.exceptions[0]
    return "%s: %s" % (type(error).__name__, error)


async def main():
    async with connected() as client:
        checks = Checks(client)
        for name, check in CHECKS.items():
            began, words = time.monotonic(), None
            try:
                with anyio.fail_after(CHECKED_WITHIN_S):
                    await check(checks)
            except Exception as error:
                words = words_of(error)
            took = time.monotonic() - began
            told = {"check": name, "passed": words is None, "words": words or "", "seconds": took}
            print(json.dumps(told), flush=True)


anyio.run(main)
