# %% [markdown]
# # An agent that works by code, over two MCP servers
#
# Run it yourself: `python examples/code_mode.py`, with the package `windlass` installed
# ([how](../../sdk/python/README.md)). It uses a node of its own, which ends with it.
#
# An agent that calls tools one by one reads every answer: a hundred calls are a hundred answers in its
# context. Here the model writes code instead. The code calls the tools in a loop, keeps what it needs
# in variables, and prints ten lines; only those go back to the model.
#
# ## A node with two servers
#
# A node reads from one file which MCP servers it runs, in the form that agents' own files have. It starts
# each of them once, for all sessions. These two are [a calendar](../../examples/servers/calendar_server.py)
# and [an address book](../../examples/servers/contacts_server.py). Usually the file is
# `~/.config/windlass/mcp.json`, and the node is the one that you have.

# %%
import atexit
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

here = Path(__file__).resolve().parent
place = tempfile.TemporaryDirectory(prefix="wl-")
os.environ["WINDLASS_RUNTIME_DIR"] = f"{place.name}/run"
os.environ["WINDLASS_STATE_DIR"] = f"{place.name}/state"
os.environ["WINDLASS_MCP_CONFIG"] = f"{place.name}/mcp.json"

config = {
    "mcpServers": {
        "calendar": {"command": sys.executable, "args": [f"{here}/servers/calendar_server.py"]},
        "contacts": {"command": sys.executable, "args": [f"{here}/servers/contacts_server.py"]},
    }
}
Path(f"{place.name}/mcp.json").write_text(json.dumps(config))


def windlass(*words: str) -> str:
    program = os.environ.get("WINDLASS_BIN", "windlass")
    return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout


atexit.register(windlass, "down")
windlass("up")
for server in json.loads(windlass("servers", "--wait", "30s", "--json"))["servers"]:
    print(server["name"], "is", server["state"], "with", server["tools"], "tools")

# %% [markdown]
# ## A session that may call some of their tools
#
# A session may call a server's tool if its policy says so ([more](../servers.md)). This one may read the
# calendar, and do all with the contacts; it cannot put anything into the calendar, whatever the model
# writes.

# %%
from windlass import Windlass, events

w = Windlass()
s = w.session(policy={"tools": ["calendar.events", "contacts.*"]})

# %% [markdown]
# ## The model
#
# A stub that stands for the language model, so that this page comes out the same every time: it yields
# the code of its next turn, and is sent what that code printed. It goes about it as a model would. It
# searches among the tools, reads the help of two of them, and then does all the work in one turn.

# %%
QUESTION = "With which ten guests, not of Tidewater, did we spend the most time in this quarter?"


def stub_model(question: str):
    seen = yield """
for found in tools.search("events of a day, person by mail address"):
    print(found["signature"], "-", found["summary"])
"""
    assert "calendar.events(day: str)" in seen and "contacts.person(mail: str)" in seen

    seen = yield """
help(tools.calendar.events)
help(tools.contacts.person)
"""
    assert "guests" in seen and "company" in seen

    seen = yield """
from collections import Counter
from datetime import date, timedelta

minutes = Counter()
for n in range(90):
    day = date(2026, 1, 1) + timedelta(n)
    for event in tools.calendar.events(day=day.isoformat())["events"]:
        for guest in event["guests"]:
            minutes[guest] += event["minutes"]

people = {mail: tools.contacts.person(mail=mail) for mail in minutes}
others = [mail for mail in minutes if people[mail]["company"] != "Tidewater"]
for mail in sorted(others, key=lambda mail: (-minutes[mail], mail))[:10]:
    print(f"{minutes[mail] / 60:5.1f} h  {people[mail]['name']}, {people[mail]['company']}")
"""
    yield None


# %% [markdown]
# ## The loop
#
# The whole agent: code from the model, its output to the model. The events of a turn also say which calls
# it made, and how many bytes of arguments and results went through them.

# %%
import time

passed: dict[int, int] = {}  # bytes by call
model_bytes = 0

model = stub_model(QUESTION)
code = next(model)
while code is not None:
    seen, began = "", time.perf_counter()
    for event in s.stream(code, deadline=60):
        match event:
            case events.Output(text=text):
                seen += text
            case events.ToolCalled(call=call, name=name, bytes=size):
                if name.startswith(("calendar.", "contacts.")):
                    passed[call] = size
            case events.ToolEnded(call=call, bytes=size) if call in passed:
                passed[call] += size
    print("--- the model sees")
    print(seen.rstrip())
    print(f"# {len(seen.encode())} bytes, took {time.perf_counter() - began:.3f} s")
    model_bytes += len(seen.encode())
    code = model.send(seen)

# %% [markdown]
# ## What passed where

# %%
tool_bytes = sum(passed.values())
print(f"{tool_bytes / 1000:.1f} kB of arguments and results in {len(passed)} calls")
print(f"{model_bytes / 1000:.1f} kB for the model")

# %% [markdown]
# What the policy does not name is not there for the code, neither to be found nor to be called:

# %%
turn = s.run("tools.calendar.create_event(day='2026-02-01', hour=9, subject='Party')")
print(turn.error.name, "-", turn.error.message)

s.close()
w.close()
