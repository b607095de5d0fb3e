"""Processes find each other or report problems. These tests use threads, and `test_torchrun.py` uses real processes."""

import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from jsonargparse import Namespace

from helpers import free_port
from lit_engine.checkpoints.io import read
from lit_engine.distributed.rendezvous import SAME, Connection, Rendezvous, follow_launcher
from lit_engine.errors import UserError

HERE = {"host": "a", **dict.fromkeys((*SAME, "toy"), "2.0")}


def meet(port, *ranks, size=2, here=HERE):
    """Start the ranks one after the other, and return the store or the error of each."""

    def one(rank):
        try:
            return Rendezvous("127.0.0.1", port, rank, size, here if rank else HERE).all_here()
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(one, ranks))


@pytest.fixture
def in_a_second(monkeypatch):
    monkeypatch.setattr("lit_engine.distributed.rendezvous.JOIN_SECONDS", 1.5)


@pytest.fixture
def agent(monkeypatch):
    """The port of a store that survives all restarts, like the store of torchrun's agent."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    yield store.port
    del store


@pytest.mark.parametrize("connected", [True, False])
def test_processes_that_wait_for_a_stopped_launcher_are_stopped(connected):
    child = subprocess.Popen(["sleep", "60"])
    connection = Connection(SimpleNamespace(launcher=SimpleNamespace(procs=[child])))
    connection.store = object() if connected else None
    connection.stop_watching()
    if connected:
        assert child.poll() is None
        child.kill()
    assert child.wait(timeout=5) == -(signal.SIGKILL if connected else signal.SIGTERM)


def test_restarted_processes_do_not_see_keys_of_earlier_processes(agent):
    """The agent's store keeps the addresses of dead processes, which restarted processes must not read."""
    for ranks in ((0, 1), (1, 0), (0, 1)):  # the second process to start may be rank 0
        parts = meet(agent, *ranks)
        assert not any(part.check(["address"]) for part in parts)
        parts[0].set("address", "of a process that ends")
        assert parts[1].get("address") == b"of a process that ends"


def test_processes_that_exited_while_waiting_do_not_count(agent, in_a_second):
    assert "for rank 1 of 2" in meet(agent, 0)[0]
    assert "for rank 0 at" in meet(agent, 1)[0]
    parts = meet(agent, 1, 0)
    parts[0].set("key", "")
    assert parts[1].check(["key"])


def test_missing_ranks_are_reported_and_stop_the_others(in_a_second, capsys):
    port = free_port()
    errors = meet(port, 0, 1, size=4)
    missing = f"for rank 2, 3 of 4 at 127.0.0.1:{port}; connected: 0 (a), 1 (a)"
    assert errors == [f"rank 0 (a) has waited 1.5 s {missing}"] * 2
    notes = capsys.readouterr().err.splitlines()
    assert sorted(notes) == [f"rank 0 (a) waits {missing}", f"rank 1 (a) waits {missing}"]
    assert f"for rank 0 at 127.0.0.1:{port}" in meet(port, 1)[0]


def test_all_processes_reject_different_versions():
    errors = meet(free_port(), 0, 1, here={**HERE, "host": "b", "torch": "1.13"})
    assert errors[0] == errors[1]
    assert errors[0].startswith(
        "the processes of this run have different versions: torch 2.0 on rank 0 (a) and 1.13 on rank 1 (b)"
    )


def test_a_port_in_use_is_reported_and_stops_all_processes(in_a_second):
    """Rank 0 fails immediately. The other rank would wait forever for an answer from the program that uses the port."""
    before = set(threading.enumerate())
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        first, second = meet(port, 0, 1)
    assert first == f"127.0.0.1:{port} is taken by another program: set MASTER_PORT to a free port"
    assert f"has waited 1.5 s for rank 0 at 127.0.0.1:{port}" in second
    store = dist.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
    for thread in set(threading.enumerate()) - before:  # otherwise it would print an error during a later test
        thread.join(timeout=60)
        assert not thread.is_alive()
    del store


def test_a_lost_connection_is_reported_in_one_line(capsys):
    connection = Connection(SimpleNamespace(global_rank=1, launcher=None))
    connection.report(closed := RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed by peer"), None)
    connection.report(UserError("no such class"), "no such class")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"error: rank 1 ended because another rank disconnected: {closed}", "error: no such class"]


def test_an_error_shared_by_all_processes_is_printed_once(monkeypatch, capsys):
    store, connections = dist.HashStore(), []
    for rank in (0, 1):
        connections.append(Connection(SimpleNamespace(global_rank=rank, launcher=None)))
        connections[rank].store = store
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(connections[1].report, UserError("no such class"), "no such class")
        connections[0].report(UserError("no such class"), "no such class")
        waiting.result()
    monkeypatch.setattr("lit_engine.distributed.rendezvous.REPORT_SECONDS", 0.1)
    connections[1].report(UserError("no such file on this host"), "no such file on this host")
    assert capsys.readouterr().err.splitlines() == ["error: no such class", "error: no such file on this host"]


@pytest.fixture
def under_torchrun(monkeypatch):
    """Set the environment of three nodes with two processes each."""
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("devices", "nodes", "found"), [
    ("auto", 1, 2), (2, 3, 2), ([0, 1], 1, [0, 1]), ("0,1", 1, "0,1"), (-1, 3, 2),
])  # fmt: skip
def test_numbers_of_devices_and_nodes_come_from_torchrun(under_torchrun, devices, nodes, found):
    options = Namespace(devices=devices, num_nodes=nodes)
    follow_launcher(options)
    assert (options.devices, options.num_nodes) == (found, 3)


@pytest.mark.parametrize(("devices", "nodes", "message"), [
    ("abc", 1, "trainer.devices is abc, but torchrun started 2 processes per node"),
    (4, 1, "trainer.devices is 4, but torchrun started 2 processes per node"),
    ("auto", 2, "trainer.num_nodes is 2, but torchrun started 3 nodes"),
])  # fmt: skip
def test_rejects_devices_and_nodes_that_contradict_torchrun(lit, under_torchrun, devices, nodes, message):
    result = lit(f"fit -c configs/quickstart.yaml --trainer.devices={devices} --trainer.num_nodes={nodes}")
    assert (result.status, len(result.err.splitlines())) == (2, 1)
    assert message in result.err


@pytest.mark.parametrize(("job", "found"), [("fit", (4, 2)), ("interactive", ("auto", 1)), ("bash", ("auto", 1))])
def test_numbers_of_devices_and_nodes_come_from_srun_except_in_an_interactive_shell(monkeypatch, job, found):
    step = {"JOB_NAME": job, "NNODES": 2, "NTASKS": 8, "NTASKS_PER_NODE": 4, "STEP_NUM_TASKS": 8}
    for name, value in step.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    options = Namespace(devices="auto", num_nodes=1)
    follow_launcher(options)
    assert (options.devices, options.num_nodes) == found


@pytest.mark.parametrize("port", ["abc", "70000"])
def test_rejects_an_invalid_port(lit, monkeypatch, port):
    monkeypatch.setenv("MASTER_PORT", port)
    result = lit("fit -c configs/quickstart.yaml")
    assert (result.status, result.err) == (2, f"error: MASTER_PORT must be a number below 65536, got '{port}'\n")


def test_rejects_more_devices_than_available(lit, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    result = lit("fit -c configs/quickstart.yaml --trainer.accelerator=gpu --trainer.devices=3")
    assert result.status == 2
    assert result.err == "error: You requested gpu: [0, 1, 2] But your machine only has: [0, 1]\n"


@pytest.mark.parametrize(("batches", "what"), [
    ("--data.batch_size=32 --trainer.accumulate_grad_batches=2", "a step had 64 × 2 = 128 samples and now has 64"),
    ("--data.batch_size=128", "a step had 128 × 2 = 256 samples and now has 128; set data.global_batch_size"),
    ("--data.batch_size=null --data.global_batch_size=128", "a step still has 128 samples"),
])  # fmt: skip
def test_reports_a_changed_number_of_processes(lit, trained, batches, what):
    file = trained / "checkpoints" / "last.ckpt"
    torch.save({**read(file), "processes": 2, "replicas": 2}, file)
    result = lit(f"fit --run {trained} --trainer.max_epochs=4 --model.schedulers=null --test_after_fit=false {batches}")
    assert result.status == 0, result.err
    assert f"processes: 2 in the checkpoint, 1 now; {what}" in result.out
