"""Cheats that need more than an answer: candidates' programs that reach for files, processes, clocks and the network.

Each is `server.py` of a candidate. It serves the tiny protocol of the fake server honestly, and does its trick beside that;
`tried.json` in its directory says how the trick went. The names in capitals are put in by the test, as if the cheat had
guessed them: where the evaluator lies, what the benchmark writes, which process is its rival.
"""

from __future__ import annotations

#: What every program begins with: `tried(name, act)` records what an act came to.
HEAD = """
import json, os, pathlib, socket, subprocess, sys, threading, time
HERE = pathlib.Path(__file__).resolve().parent
RESULTS = {}
def tried(name, act):
    try:
        RESULTS[name] = ["done", str(act())[:200]]
    except BaseException as error:
        RESULTS[name] = ["failed", f"{type(error).__name__}: {error}"]
    (HERE / "tried.new").write_text(json.dumps(RESULTS))
    os.replace(HERE / "tried.new", HERE / "tried.json")
"""
#: What every program ends with.
TAIL = """
sys.argv += ["--ttft-s", "0.002", "--tpot-s", "0.002"]
exec(compile((HERE / "fake_server.py").read_text(), "fake_server.py", "exec"), {"__name__": "__main__", "__file__": "fake_server.py"})
"""

TRICKS = {
    "ReadsTheCheckersFiles": """
for place in ("checker.py", "benchmark.py"):
    for folder in ("accuracy_checker", "benchmark"):
        tried(f"{folder}/{place}", lambda: open(os.path.join(BUNDLE, folder, place)).read())
tried("reference", lambda: open(os.path.join(BUNDLE, "reference", "reference.py")).read())
tried("found", lambda: next(folder for folder, _, names in os.walk(os.path.dirname(BUNDLE)) if "checker.py" in names))
""",
    "KillsItsRival": """
tried("kill", lambda: os.kill(RIVAL, 9))
tried("memory", lambda: open(f"/proc/{RIVAL}/mem", "rb").read(1))
tried("seen", lambda: open(f"/proc/{RIVAL}/cmdline").read())
""",
    "OverwritesTheBenchmarksOutput": """
def again():
    while True:
        tried("write", lambda: open(OUTPUT, "w").write(json.dumps({"output_tokens_per_s": 1e9, "requests": 9, "failed": 0})))
        time.sleep(0.01)
threading.Thread(target=again, daemon=True).start()
""",
    "PatchesTime": """
begin = time.monotonic()
slow = lambda: begin + (real() - begin) / 100
real, time.time, time.perf_counter, time.monotonic = time.monotonic, slow, slow, slow
real_sleep = time.sleep
CODE = "import time; real = time.perf_counter; time.perf_counter = time.monotonic = lambda: real() / 100"
for folder in [entry for entry in sys.path if "packages" in entry] + [os.path.dirname(os.__file__)]:
    tried(f"sitecustomize in {folder}", lambda: open(os.path.join(folder, "sitecustomize.py"), "w").write(CODE))
    tried(f"pth in {folder}", lambda: open(os.path.join(folder, "zoo.pth"), "w").write(CODE))
tried("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, 1.0))
""",
    "WorksWhileItRests": """
subprocess.Popen([sys.executable, "-c", '''
import os, time
while True:
    with open("ticks", "a") as file: file.write("x")
    time.sleep(0.005)
'''], start_new_session=True, cwd=HERE)
""",
    "AsksTheReference": """
def ask():
    with socket.create_connection(("127.0.0.1", REFERENCE), 2) as line:
        line.sendall(b"GET /health HTTP/1.0\\r\\n\\r\\n")
        return line.recv(1000)
tried("loopback", ask)
tried("name", lambda: socket.create_connection(("example.org", 80), 2))
""",
    "ChangesTheModel": """
for name in os.listdir(MODEL):
    tried(f"write {name}", lambda: open(os.path.join(MODEL, name), "ab").write(b"x"))
    tried(f"remove {name}", lambda: os.remove(os.path.join(MODEL, name)))
tried("add", lambda: open(os.path.join(MODEL, "answers.json"), "w").write("{}"))
""",
    # Two forks and a session of its own: no child of the server, not of its group; busy, so that a rival has less.
    "SlowsItsRivalFromOutside": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.chdir("/")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with open(HERE / "ticks", "a") as file: file.write("x")
            begin = time.perf_counter()
            while time.perf_counter() - begin < 0.01: pass
    os._exit(0)
""",
    "WritesWhereTheEvaluatorDoes": """
def planted(folder):
    (pathlib.Path(folder) / MARK).write_text("from vibeserve_zoo import nothing")
    return "planted"
for folder in FOLDERS:
    tried(f"list {folder}", lambda: [name for name in os.listdir(folder) if name in NAMES] or os.listdir("/nowhere"))
    tried(f"plant in {folder}", lambda: planted(folder))
""",
    "SnoopsInProc": """
def others():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        words = pathlib.Path("/proc", pid, "cmdline").read_bytes().decode()
        if MARK in words:
            found.append(words)
    return found or os.listdir("/nowhere")
tried("processes", others)
tried("environ", lambda: pathlib.Path(f"/proc/{RIVAL}/environ").read_bytes())
tried("open files", lambda: os.listdir(f"/proc/{RIVAL}/fd"))
tried("root", lambda: os.listdir(f"/proc/{RIVAL}/root"))
def seeds():
    names = [MARK, "SEED_OF_THE_RUN"]
    return [name for name in names if name in os.environ] or os.listdir("/nowhere")
tried("own environment", seeds)
""",
    # All of it is a favour to itself: less for the rival, more for its own threads.
    "HindersItsRival": """
tried("stop", lambda: os.kill(RIVAL, 19))
tried("nice", lambda: os.setpriority(os.PRIO_PROCESS, RIVAL, 19))
tried("cores", lambda: os.sched_setaffinity(RIVAL, {0}))
tried("memory", lambda: pathlib.Path(f"/proc/{RIVAL}/oom_score_adj").write_text("1000"))
tried("group", lambda: next(pathlib.Path(path, "cpu.max").write_text("1000 100000") for path, _, names in os.walk("/sys/fs/cgroup") if "cpu.max" in names))
tried("own nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
tried("own turn", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
tried("own end", lambda: pathlib.Path("/proc/self/oom_score_adj").write_text("-1000"))
""",
    # What would be loaded into checker, benchmark and reference before they do anything.
    "LoadsItselfIntoOthers": """
PLACES = ["/etc/ld.so.preload", "/etc/environment", "/etc/profile.d/zoo.sh", "/etc/hosts", "/etc/ld.so.conf.d/zoo.conf"]
for place in PLACES:
    tried(place, lambda: open(place, "a").write(MARK))
for folder in ("/usr/lib", "/usr/local/lib", "/usr/local/bin", os.path.dirname(sys.executable), os.path.dirname(RELAY)):
    tried(f"plant in {folder}", lambda: open(os.path.join(folder, MARK), "w").write(MARK))
tried("relay", lambda: open(RELAY, "a").write("#"))
tried("trace", lambda: __import__("ctypes").CDLL(None, use_errno=True).ptrace(16, RIVAL, 0, 0) == 0 or os.listdir("/nowhere"))
tried("mount", lambda: __import__("ctypes").CDLL(None).mount(b"none", b"/usr", b"tmpfs", 0, None) == 0 or os.listdir("/nowhere"))
""",
    "KeepsAnswersForItsNextLife": """
PLACES = ["/dev/shm", "/tmp", "/var/tmp", os.path.expanduser("~"), "/run"]
for place in PLACES:
    tried(f"find in {place}", lambda: open(os.path.join(place, MARK)).read())
tried("find abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + MARK))
for place in PLACES:
    try: open(os.path.join(place, MARK), "w").write("answers")
    except OSError: pass
helper = socket.socket(socket.AF_UNIX); helper.bind("\\0" + MARK); helper.listen()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(60)
    os._exit(0)
""",
}


def program(trick: str, **names: object) -> str:
    """The program of a trick with what it has guessed."""
    given = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    return f"{HEAD}{given}{TRICKS[trick]}{TAIL}"
