"""A small MCP server over standard input and output, of the standard library alone: plain functions
that return objects become tools. Enough for these examples; yours would use an MCP library."""

import inspect
import json
import sys
from typing import Any, Callable

#: What a type hint is in a JSON schema.
JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def serve(name: str, *functions: Callable[..., Any]) -> None:
    """Answers requests, one a line, until the input ends."""
    tools = {function.__name__: function for function in functions}
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue  # A notification: nobody waits for an answer.
        try:
            answer = {"result": handle(name, tools, request["method"], request.get("params", {}))}
        except NotImplementedError as unknown:
            answer = {"error": {"code": -32601, "message": f"there is no method {unknown}"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)


def handle(name: str, tools: dict[str, Callable[..., Any]], method: str, params: Any) -> Any:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": name, "version": "1.0"},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": [describe(function) for function in tools.values()]}
    if method == "tools/call":
        return call(tools, params["name"], params.get("arguments", {}))
    raise NotImplementedError(method)


def describe(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {
        "name": function.__name__,
        "description": inspect.getdoc(function),
        "inputSchema": {
            "type": "object",
            "properties": {one.name: {"type": JSON_TYPES[one.annotation]} for one in parameters},
            "required": [one.name for one in parameters if one.default is one.empty],
        },
    }


def call(tools: dict[str, Callable[..., Any]], name: str, arguments: Any) -> Any:
    try:
        value = tools[name](**arguments)
    except Exception as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}
    # Structured, for whoever can take it; as text for all others.
    text = {"type": "text", "text": json.dumps(value)}
    return {"content": [text], "structuredContent": value}
