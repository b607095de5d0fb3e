"""Simulates a sweep on two machines: two folders share a study in a PostgreSQL database. Trials run the real `fit`."""

import csv
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import yaml

from helpers import TOY, free_port

INITDB = shutil.which("initdb") or next(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")), "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(560),
    pytest.mark.skipif(not INITDB, reason="no PostgreSQL server is installed"),
]
TRIALS = 4


@pytest.fixture
def url(monkeypatch):
    """The URL of a separate database on a new local server."""
    monkeypatch.setenv("PYTHONPATH", str(TOY.parent), prepend=os.pathsep)
    folder = Path(tempfile.mkdtemp())
    user = {}
    if os.geteuid() == 0:  # PostgreSQL rejects root
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    port = free_port()
    make = [INITDB, "-D", "data", "-U", "me", "-A", "trust", "--no-sync"]
    subprocess.run(make, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=60, **user)
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    with (folder / "log").open("w") as log:
        serve = [Path(INITDB).with_name("postgres"), "-D", "data", "-p", str(port), *options]
        server = subprocess.Popen(serve, cwd=folder, stderr=log, **user)
    try:
        while "ready to accept" not in (folder / "log").read_text():
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
        yield f"postgresql+psycopg://me@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)  # also closes connections
        server.wait(timeout=30)
        shutil.rmtree(folder)


class Machine:
    """A running `toy sweep` in its own folder, whose output is read continuously."""

    def __init__(self, folder, url):
        folder.mkdir()
        (folder / "configs").symlink_to(TOY / "configs")
        content = yaml.safe_load((TOY / "configs" / "sweeps" / "grid.yaml").read_text())
        content["parameters"] = {"seed_everything": {"values": list(range(TRIALS))}}
        (folder / "seeds.yaml").write_text(yaml.safe_dump(content))
        net = '{"class_path": "MLP", "init_args": {"hidden_sizes": [32]}}'
        self.words = [sys.executable, "-m", "toy", "sweep", "seeds.yaml", f"--model.net={net}",
                      "--trainer.max_epochs=20", f"--storage={url}", "--lost_after=6"]  # fmt: skip
        self.folder, self.said = folder, []
        self.process = subprocess.Popen(
            self.words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        threading.Thread(target=lambda: self.said.extend(self.process.stdout)).start()

    def trials(self, word):
        """Return the numbers of the trials reported as `started` or `finished`."""
        return [int(line.split()[1]) for line in list(self.said) if line.split()[:1] == ["trial"] and word in line]

    def kill(self):
        """Simulate a power failure during a trial that has saved a checkpoint, and return the number of the trial."""
        while self.process.poll() is None:
            finished, started = self.trials("finished"), self.trials("started")
            if finished and started[-1] != finished[-1] and self.saved(started[-1]):
                break
            time.sleep(0.02)
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        for pid in [self.process.pid, *(int(child) for task in tasks for child in task.read_text().split())]:
            os.kill(pid, signal.SIGKILL)
        return started[-1]

    def saved(self, trial):
        return (self.folder / f"sweeps/seeds/quickstart/trial-{trial:04d}/checkpoints/last.ckpt").exists()

    def report(self):
        """Return the rows of trials.csv and the output of the command."""
        made = subprocess.run([*self.words, "--report"], cwd=self.folder, capture_output=True, text=True, timeout=100)
        assert made.returncode == 0, made.stderr
        with (self.folder / "sweeps/seeds/trials.csv").open() as file:
            return list(csv.DictReader(file)), made.stdout


def test_two_machines_share_trials_and_one_takes_over_from_a_lost_machine(tmp_path, url):
    machines = lost, other = [Machine(tmp_path / name, url) for name in ("lost", "other")]
    try:
        number = lost.kill()
        assert other.process.wait(timeout=400) == 0, other.said
    finally:
        for machine in machines:
            machine.process.kill()
    assert number in other.trials("started")
    done = [*lost.trials("finished"), *other.trials("finished")]
    assert sorted(done) == list(range(TRIALS))  # each trial finished exactly once
    assert 0 < len(lost.trials("finished")) < TRIALS - 1
    begun = {path.name for machine in machines for path in machine.folder.glob("sweeps/seeds/quickstart/*")}
    assert len(begun) == TRIALS
    reports = [machine.report() for machine in machines]
    for rows, said in reports:
        assert f"{TRIALS} trials: {TRIALS} finished" in said
        assert sorted(int(row["seed_everything"]) for row in rows) == list(range(TRIALS))
        assert all(row["host"] == os.uname().nodename for row in rows)
    # Only the machine with the best run writes best.yaml. The other machine prints where that run is.
    assert sorted("best.yaml" in said for _, said in reports) == [False, True]
    assert sorted(f"best run: sweeps/seeds/quickstart/trial-{int(reports[0][0][0]['trial']):04d} on" in said
                  for _, said in reports) == [False, True]  # fmt: skip
