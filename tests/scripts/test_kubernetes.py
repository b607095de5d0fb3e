"""Tests scripts/kubernetes.yaml against Kubeflow Trainer's schema and the options of torchrun and this project."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch.distributed.run import config_from_args, get_args_parser

from helpers import free_port
from lit_engine.cli.invocation import prepare
from lit_engine.cli.parser import LitCLI
from lit_engine.project import current
from tiny import TINY

ROOT = Path(__file__).parents[2]
CLAIM, JOB = yaml.safe_load_all((ROOT / "scripts" / "kubernetes.yaml").read_text())
PAGE = (ROOT / "docs" / "scaling.md").read_text()
TRAINER = JOB["spec"]["trainer"]


def fits(job):
    """Return whether a job matches its schema, which drops unknown keys and raises ValueError for wrong types."""
    from kubeflow_trainer_api import models  # takes more than a second

    return models.TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job


def pod_of(job):
    (patch,) = job["spec"]["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    return node["template"]["spec"]["template"]["spec"]


def test_manifest_matches_its_schema():
    from kubeflow_trainer_api import models

    assert fits(JOB)
    assert models.IoK8sApiCoreV1PersistentVolumeClaim.from_dict(CLAIM).to_dict() == CLAIM


def test_manifest_is_consistent_with_the_image_and_the_docs():
    pod, dockerfile = pod_of(JOB), (ROOT / "Dockerfile").read_text()
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]
    folder = re.search(r"^WORKDIR (.*)", dockerfile, re.MULTILINE)[1]
    paths = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert paths == [f"{folder}/runs", f"{folder}/data", "/dev/shm"]
    assert f"docker push {TRAINER['image']}\nkubectl apply -f scripts/kubernetes.yaml\n" in PAGE
    assert f"kubectl patch trainjob {JOB['metadata']['name']} " in PAGE
    assert pod["securityContext"]["fsGroup"] == int(re.search(r"^ARG GID=(.*)", dockerfile, re.MULTILINE)[1])


@pytest.mark.skipif(torch.__version__ < "2.12", reason="torchrun has no --shutdown_timeout in earlier versions")
def test_torchrun_and_fit_accept_the_command_of_the_job(monkeypatch):
    """Use the environment variables that Kubeflow Trainer sets in the second pod."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    name = f"{JOB['metadata']['name']}-node-0-0.{JOB['metadata']['name']}"
    pod = {
        "NNODES": TRAINER["numNodes"],
        "NPROC_PER_NODE": 8,
        "NODE_RANK": 1,
        "MASTER_ADDR": name,
        "MASTER_PORT": 29400,
    }
    for key, value in pod.items():
        monkeypatch.setenv(f"PET_{key}", str(value))
    program, *words = [*TRAINER["command"], *TRAINER["args"]]
    launch, _, args = config_from_args(get_args_parser().parse_args(words))
    assert (program, args[:4]) == ("torchrun", ["-u", "-m", "lit_project", "fit"])
    assert (launch.min_nodes, launch.max_nodes, launch.nproc_per_node) == (2, 2, 8)
    assert (launch.rdzv_backend, launch.rdzv_endpoint, launch.rdzv_configs["rank"]) == ("static", f"{name}:29400", 1)
    assert launch.shutdown_timeout < pod_of(JOB)["terminationGracePeriodSeconds"]
    options = LitCLI(current(), prepare(args[3:]).args).options
    assert (options.run_name, options.resume) == ("first", True)


@pytest.mark.slow
def test_two_pods_train_one_run(tmp_path):
    """Run the job's own command locally with the quickstart and one process per pod."""
    fit = f"fit -c {ROOT}/configs/quickstart.yaml {TINY} --trainer.max_epochs=1 --test_after_fit=false"
    words = [*TRAINER["command"], *fit.split(), *TRAINER["args"][3:]]
    assert TRAINER["args"][:3] == ["fit", "-c", "configs/fashion_mnist_cnn.yaml"]
    pod = {"NNODES": 2, "NPROC_PER_NODE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **{f"PET_{key}": str(value) for key, value in pod.items()}}
    pods = []
    try:
        for rank in (0, 1):
            log = (tmp_path / f"pod{rank}.log").open("w")
            command = [str(Path(sys.executable).with_name(words[0])), *words[1:], "--trainer.accelerator=cpu"]
            own = {**variables, "PET_NODE_RANK": str(rank)}
            pods.append(subprocess.Popen(command, cwd=tmp_path, env=own, stdout=log, stderr=subprocess.STDOUT))
        for rank, process in enumerate(pods):
            assert process.wait(200) == 0, (tmp_path / f"pod{rank}.log").read_text()[-3000:]
    finally:
        for process in pods:
            process.terminate()  # torchrun stops its workers
    (run,) = (tmp_path / "runs" / "quickstart").iterdir()
    assert run.name == "first"
    metrics = json.loads((run / "metrics.json").read_text())["fit"]
    assert (metrics["train/samples"], metrics["steps"]) == (1257, 5)
