"""A stub of the models' APIs on loopback: OpenAI's Responses and chat completions, Anthropic's Messages, Gemini's.

The last prompt chooses what the model does: `say TEXT`, `command C` (a call of the agent's shell tool, then a final
message), `run CODE` (the same with the tool of the session's MCP server), `slow` (words for a minute), `error CODE`. Prints its port.
"""

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SHELLS = {
    "responses": ("exec_command", lambda command: {"cmd": command}),
    "messages": ("Bash", lambda command: {"command": command, "description": "run it"}),
    "chat": ("bash", lambda command: {"command": command, "description": "run it"}),
    "gemini": ("run_shell_command", lambda command: {"command": command, "description": "run it"}),
}

# How the agents name the tool `run` of the MCP server `windlass`.
RUNS = {
    "responses": "mcp__windlass__run",
    "messages": "mcp__windlass__run",
    "chat": "windlass_run",
    "gemini": "mcp_windlass_run",
}


def plan(dialect, prompt, results):
    """What the model says: a list of texts and calls."""
    if results:
        return [("text", "done")]
    for line in prompt.splitlines():
        word, _, rest = line.strip().strip('"').partition(" ")
        if word == "command":
            name, arguments = SHELLS[dialect]
            return [("call", name, arguments(rest))]
        if word == "run":
            return [("call", RUNS[dialect], {"code": rest})]
        if word == "slow":
            return [("slow", f"w{number} ") for number in range(120)]
        if word == "error":
            return [("error", int(rest))]
        if word == "say":
            return [("text", rest)]
    return [("text", "ok")]


def texts(content):
    parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content or []]
    return "\n".join(part for part in parts if not part.startswith("<"))


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    number = 0

    def log_message(self, *words):
        pass

    def reply(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def begin(self):
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()

    def event(self, event):
        name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
        data = event if isinstance(event, str) else json.dumps(event)
        self.wfile.write(f"{name}data: {data}\n\n".encode())
        self.wfile.flush()

    def do_GET(self):
        self.reply({"data": [], "models": [], "has_more": False})

    def do_HEAD(self):
        self.reply({})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        Model.number += 1
        path = self.path.split("?")[0]
        try:
            if path.endswith("/responses"):
                self.as_responses(body)
            elif path.endswith("/messages"):
                self.as_messages(body)
            elif path.endswith("/chat/completions"):
                self.as_chat(body)
            elif "Content" in path or path.endswith("countTokens"):
                self.as_gemini(body, path)
            else:
                self.reply({"input_tokens": 1})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def failed(self, said):
        if said[0][0] != "error":
            return False
        self.reply({"type": "error", "error": {"type": "api_error", "message": "stub"}}, said[0][1])
        return True

    def as_responses(self, body):
        prompt, results = "", 0
        for item in body.get("input", []):
            if item.get("role") == "user":
                text = texts(item.get("content"))
                prompt, results = (text, 0) if text and not text.startswith("# AGENTS") else (prompt, results)
            elif item.get("type", "").endswith("_output"):
                results += 1
        said = plan("responses", prompt, results)
        if self.failed(said):
            return
        self.begin()
        response = {"id": f"resp_{self.number}", "object": "response", "model": body.get("model"), "output": []}
        self.event({"type": "response.created", "response": response})
        name = f"item_{self.number}"
        if said[0][0] == "call":
            item = {"type": "function_call", "id": name, "call_id": f"call_{self.number}", "name": said[0][1]}
            item["arguments"] = json.dumps(said[0][2])
            if item["name"].startswith("mcp__"):
                group, _, item["name"] = item["name"].rpartition("__")
                item["namespace"] = group
        else:
            item = {"type": "message", "id": name, "role": "assistant", "content": []}
            self.event({"type": "response.output_item.added", "output_index": 0, "item": item})
            for kind, text in said:
                delta = {"type": "response.output_text.delta", "item_id": name, "output_index": 0}
                self.event({**delta, "content_index": 0, "delta": text})
                if kind == "slow":
                    time.sleep(0.5)
            whole = "".join(text for _, text in said)
            item["content"] = [{"type": "output_text", "text": whole, "annotations": []}]
        self.event({"type": "response.output_item.done", "output_index": 0, "item": item})
        usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        self.event({"type": "response.completed", "response": {**response, "output": [item], "usage": usage}})

    def as_messages(self, body):
        prompt, results = "", 0
        for message in body.get("messages", []):
            content = message["content"]
            if message["role"] != "user":
                continue
            if isinstance(content, list) and any(part["type"] == "tool_result" for part in content):
                results += 1
                continue
            text = texts(content)
            if text and not text.startswith("[Request interrupted"):
                prompt, results = text, 0
        said = plan("messages", prompt, results) if body.get("tools") else [("text", "filler")]
        if self.failed(said):
            return
        usage = {"input_tokens": 10, "output_tokens": 1}
        message = {"id": f"msg_{self.number}", "type": "message", "role": "assistant", "content": []}
        message.update(model=body.get("model"), stop_reason=None, stop_sequence=None, usage=usage)
        if not body.get("stream"):
            self.reply({**message, "content": [{"type": "text", "text": "ok"}], "stop_reason": "end_turn"})
            return
        self.begin()
        self.event({"type": "message_start", "message": message})
        is_call = said[0][0] == "call"
        if is_call:
            block = {"type": "tool_use", "id": f"toolu_{self.number}", "name": said[0][1], "input": {}}
            deltas = [("call", {"type": "input_json_delta", "partial_json": json.dumps(said[0][2])})]
        else:
            block = {"type": "text", "text": ""}
            deltas = [(kind, {"type": "text_delta", "text": text}) for kind, text in said]
        self.event({"type": "content_block_start", "index": 0, "content_block": block})
        for kind, delta in deltas:
            self.event({"type": "content_block_delta", "index": 0, "delta": delta})
            if kind == "slow":
                time.sleep(0.5)
        self.event({"type": "content_block_stop", "index": 0})
        stop = {"stop_reason": "tool_use" if is_call else "end_turn", "stop_sequence": None}
        self.event({"type": "message_delta", "delta": stop, "usage": {"output_tokens": 2}})
        self.event({"type": "message_stop"})

    def as_chat(self, body):
        said = [("text", "title")]
        messages = body.get("messages", [])
        if body.get("tools"):
            last = messages[-1]
            said = plan("chat", texts(last.get("content")), last["role"] == "tool")
        if self.failed(said):
            return
        base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body.get("model")}
        self.begin()

        def chunk(delta, finish=None):
            self.event({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

        finish = "stop"
        for part in said:
            if part[0] == "call":
                function = {"name": part[1], "arguments": json.dumps(part[2])}
                call = {"index": 0, "id": f"call_{self.number}", "type": "function", "function": function}
                chunk({"tool_calls": [call]})
                finish = "tool_calls"
            else:
                chunk({"content": part[1]})
            if part[0] == "slow":
                time.sleep(0.5)
        chunk({}, finish)
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        self.event({**base, "choices": [], "usage": usage})
        self.event("[DONE]")

    def as_gemini(self, body, path):
        if path.endswith("countTokens"):
            return self.reply({"totalTokens": 10})
        contents = body.get("contents") or [{}]
        parts = contents[-1].get("parts", [])
        results = any("functionResponse" in part for part in parts)
        prompt = "\n".join(part.get("text", "") for part in parts)
        said = plan("gemini", prompt, results) if body.get("tools") else [("text", "{}")]
        if self.failed(said):
            return
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 12}

        def candidate(parts, finish=None):
            content = {"content": {"role": "model", "parts": parts}, "index": 0}
            content.update({"finishReason": finish} if finish else {})
            return {"candidates": [content], "usageMetadata": usage}

        if not path.endswith("streamGenerateContent"):
            return self.reply(candidate([{"text": "{}"}], "STOP"))
        self.begin()
        for part in said:
            if part[0] == "call":
                self.event(candidate([{"functionCall": {"name": part[1], "args": part[2]}}]))
            else:
                self.event(candidate([{"text": part[1]}]))
            if part[0] == "slow":
                time.sleep(0.5)
        self.event(candidate([{"text": ""}], "STOP"))


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
