"""A test case with one worker for all its tests, and helpers for turns and tools."""

import json
import os
import shutil
import tempfile
import unittest

from node_keeper import NODE, Keeper, Told


def major():
    import subprocess

    return int(subprocess.run([NODE, "-p", "process.versions.node"], capture_output=True, text=True).stdout.split(".")[0])


MAJOR = major() if shutil.which(NODE) else 0


class WorkerCase(unittest.TestCase):
    environment = {}
    fd = None

    @classmethod
    def setUpClass(cls):
        if MAJOR == 0:
            raise unittest.SkipTest("skipped: no node named %s" % NODE)

    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        self.keeper = Keeper(cwd=self.directory, environment=self.environment, fd=self.fd)
        self.addCleanup(self.keeper.close)

    def run_code(self, code, *answers):
        return self.keeper.run(code, *answers)

    def result(self, code, *answers):
        told = self.run_code(code, *answers)
        self.assertEqual(told.outcome, "ok", "%s\n%s" % (code, told.traceback))
        return told.result

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def start(self, code):
        """Start a turn that prints `on` when it is at the interesting point."""
        self.keeper.start(code)
        self.keeper.until_printed("on\n")

    def stop(self, code):
        self.start(code)
        self.keeper.interrupt()
        told = self.keeper.until("idle", turn=self.keeper.turn)
        self.assertEqual(told.outcome, "interrupted", code)
        return told

    def answer_tool(self, call, value=None, error=None):
        body = json.dumps(value if error is None else error).encode()
        self.keeper.send(body, kind="tool_result", turn=call["turn"], call=call["call"], ok=error is None)

    def run_with_tools(self, code, tools):
        """Run a turn. `tools` has a function of the arguments for each name; one that raises KeyError fails."""
        self.keeper.start(code)
        said, parts = [], {}
        while True:
            told = self.keeper.until("tool_call", "idle")
            said += told.events
            if told.last["kind"] == "idle":
                return Told(said)
            call = told.last
            body = parts.pop(call["call"], b"") + call["body"]
            if call.get("more"):
                parts[call["call"]] = body
                continue
            try:
                self.answer_tool(call, tools[call["name"]](json.loads(body)))
            except KeyError as error:
                self.answer_tool(call, error={"message": "no %s" % error, "code": "tool_not_found"})
            except ValueError as error:
                self.answer_tool(call, error={"message": str(error), "type": "ValueError"})
