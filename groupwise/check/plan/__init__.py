"""What a recipe needs of a GPU, on paper: memory by part, seconds by part, bytes between GPUs.

    from groupwise.check.plan import job_of, make_plan, shape_of, GPUS

    plan = make_plan(shape_of("shape:8b"), job_of(config), GPUS["h100"])
    plan.fits, plan.peak, plan.seconds

Pure functions, no torch: the shape of a model (shapes.py), what is done with it (job.py) and a GPU
(gpus.py) in, a `Plan` out (estimate.py). How groupwise itself uses memory is written down in
memory.py, how long it takes in seconds.py, what travels in traffic.py. The numbers there are
checked against measured steps by tests/check/plan/.
"""

from groupwise.check.plan.advice import Advice, advise
from groupwise.check.plan.estimate import Plan, make_plan
from groupwise.check.plan.gpus import GPUS, Gpu, find_gpu
from groupwise.check.plan.job import Job, job_of
from groupwise.check.plan.shapes import SHAPES, Shape, shape_of

__all__ = [
    "GPUS", "SHAPES", "Advice", "Gpu", "Job", "Plan", "Shape", "advise", "find_gpu", "job_of",
    "make_plan", "shape_of",
]  # fmt: skip
