"""SLURM's variables as torch.distributed's: `srun groupwise train ...` needs no other launcher."""

import re
from collections.abc import MutableMapping


def adopt_slurm(environment: MutableMapping[str, str]) -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, in a task of a job step.

    What is set already stays. A batch script and an interactive shell have a job and no step: they
    are one process, whatever the job's number of tasks.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS", "1")
    in_step = "SLURM_STEP_ID" in environment or "SLURM_JOB_ID" not in environment
    known = "SLURM_PROCID" in environment and tasks.isdigit() and in_step
    if "RANK" in environment or "WORLD_SIZE" in environment or not known or int(tasks) < 2:
        return
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")
    job = environment.get("SLURM_JOB_ID", "")
    variables = {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": tasks,
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "MASTER_ADDR": first_host(hosts) or "127.0.0.1",
        # Two jobs on one machine need two ports; below the range of ephemeral ports.
        "MASTER_PORT": str(12000 + int(job) % 20000) if job.isdigit() else "29500",
    }
    for name, value in variables.items():
        environment.setdefault(name, value)


def first_host(hosts: str) -> str:
    """The first of a list such as gpu[07-09,12],login1 (that is gpu07)."""
    first = re.match(r"[^,\[\]]*(?:\[[^\[\]]{0,1000}\][^,\[\]]*)*", hosts)
    name = first[0] if first else ""
    return re.sub(r"\[([^\[\]]*)\]", lambda m: re.split(r"[-,]", m[1])[0], name)
