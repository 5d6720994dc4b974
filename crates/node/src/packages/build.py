"""Builds a virtual environment in the working directory. Runs as a turn of a session that has no other purpose.

Reads `order.json` and `requirements.txt`, makes `venv`, and writes `lock.txt`.
"""


def build():
    import json
    import os
    import subprocess
    import sys

    with open("order.json") as file:
        order = json.load(file)
    python = os.path.abspath("venv/bin/python")
    wheels = [] if order["allow_source_builds"] else ["--only-binary", ":all:"]
    hashes = ["--require-hashes"] if order["locked"] else []

    def run(*command):
        """Run a command, show its output, and end the turn with its last error if it fails."""
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        last = []
        for line in process.stdout:
            text = line.decode("utf-8", "replace")
            sys.stdout.write(text)
            # The lines of an error, as pip and uv write them.
            if text.startswith(("ERROR", "error", "  \u00d7", "  \u2570", "      ")) and text.strip():
                last = last[-4:] + [text.strip()]
        if process.wait() != 0:
            what = os.path.basename(command[0])
            reason = "; ".join(last) or "%s ended with status %d" % (what, process.returncode)
            raise SystemExit(reason[-1000:])

    def with_uv(uv):
        run(uv, "venv", "--quiet", "--no-python-downloads", "--python", sys.executable, "venv")
        if not order["locked"]:
            run(uv, "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate",
                "--python", python, *wheels, "-o", "lock.txt", "requirements.txt")
        source = "requirements.txt" if order["locked"] else "lock.txt"
        run(uv, "pip", "install", "--python", python, "--require-hashes", "--link-mode", "copy", *wheels, "-r", source)
        # With -S, so that no code of a package runs here: it could change what later builds find in the cache.
        run(python, "-I", "-S", "-m", "compileall", "-q", "venv/lib")

    def with_pip():
        import importlib.util

        pip = [sys.executable, "-m", "pip", "--python", python]
        if importlib.util.find_spec("pip") is not None:
            run(sys.executable, "-m", "venv", "--without-pip", "venv")
        elif importlib.util.find_spec("ensurepip") is not None:
            run(sys.executable, "-m", "venv", "venv")
            pip = [python, "-m", "pip"]
        else:
            raise SystemExit(
                "%s has neither pip nor ensurepip; install uv, or the system's packages python3-pip or python3-venv"
                % sys.executable
            )
        run(*pip, "install", "--progress-bar", "off", "--no-warn-script-location", "--report", "report.json",
            *hashes, *wheels, "-r", "requirements.txt")
        if not order["locked"]:
            with open("report.json") as report, open("lock.txt", "w") as lock:
                for entry in json.load(report)["install"]:
                    about = entry["metadata"]
                    archive = entry["download_info"]["archive_info"]
                    found = archive.get("hashes") or dict([archive["hash"].split("=", 1)])
                    lock.write("%s==%s --hash=sha256:%s\n" % (about["name"], about["version"], found["sha256"]))

    if order["uv"]:
        with_uv(order["uv"])
    else:
        with_pip()
    if order["locked"]:
        with open("requirements.txt") as source, open("lock.txt", "w") as lock:
            lock.write(source.read())
    subprocess.run([python, "-I", "-S", "-c", "pass"], check=True)


build()
