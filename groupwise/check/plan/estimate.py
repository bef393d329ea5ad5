"""The plan of a step: does it fit, what does it cost."""

from dataclasses import dataclass

from groupwise.check.plan.gpus import GIB, Gpu
from groupwise.check.plan.job import Job
from groupwise.check.plan.memory import Memory, memory
from groupwise.check.plan.seconds import Seconds, seconds
from groupwise.check.plan.shapes import Shape
from groupwise.check.plan.traffic import Traffic, traffic


@dataclass(frozen=True)
class Plan:
    """One GPU of `job.world` alike. Memory in bytes, times in seconds, both by part."""

    shape: Shape
    job: Job
    gpu: Gpu
    memory: Memory
    seconds: Seconds
    traffic: Traffic

    @property
    def fits(self) -> bool:
        return self.memory.peak <= self.gpu.memory

    @property
    def peak_gib(self) -> float:
        """With CUDA's context and the allocator's holes."""
        return self.memory.peak / GIB

    @property
    def step(self) -> float:
        """Seconds of the whole step; rewards are not planned."""
        return sum(self.seconds.values())


def make_plan(shape: Shape, job: Job, gpu: Gpu) -> Plan:
    moved = traffic(shape, job)
    spent = dict(seconds(shape, job, gpu))
    waiting = moved.seconds(gpu, job.world)
    if waiting:
        spent["communication"] = waiting
    return Plan(shape, job, gpu, memory(shape, job, gpu), spent, moved)
