"""The plan on paper of a recipe, for this machine or for GPUs that are elsewhere."""

from groupwise.check.plan import Gpu, Plan, find_gpu, job_of, make_plan, shape_of
from groupwise.check.plan.gpus import gpu_like, this_cpu
from groupwise.check.plan.shapes import PREFIX
from groupwise.check.plan.show import plan_text
from groupwise.config import Config
from groupwise.errors import ConfigError, ModelError
from groupwise.tracking.console import console


def print_costs(config: Config, gpu: str | None, gpus: int) -> bool:
    """The plan. Says whether it is for this machine, and for a model that can be tried on it."""
    shape_only = config.model.startswith(PREFIX)
    try:
        plan = costs(config, find_gpu(gpu) if gpu else gpu_here(config), gpus)
    except ModelError as error:
        if gpu or shape_only:
            raise
        console.print(f"plan       none: {error}", highlight=False, markup=False)
        return True
    console.print(plan_text(plan), highlight=False, markup=False, soft_wrap=True)
    return not shape_only and gpus == 1 and (gpu is None or _is_here(plan.gpu, config))


def costs(config: Config, gpu: Gpu, gpus: int) -> Plan:
    job = job_of(config, on_gpu=not gpu.is_cpu, world=gpus)
    return make_plan(shape_of(config.model), job, gpu)


def gpu_here(config: Config) -> Gpu:
    """What `device` means on this machine."""
    from groupwise.policy.load import pick_device

    if pick_device(config.device).type != "cuda":
        return this_cpu()
    import torch

    found = torch.cuda.get_device_properties(0)
    return gpu_like(found.name, found.total_memory)


def _is_here(gpu: Gpu, config: Config) -> bool:
    here = gpu_here(config)
    try:
        return gpu == (here if here.is_cpu else find_gpu(here.name))
    except ConfigError:  # a GPU without an entry in the table
        return False
