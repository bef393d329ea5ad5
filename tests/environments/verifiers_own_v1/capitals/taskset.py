"""A taskset of verifiers 0.4 with a tool: name the capital of a country."""

import verifiers.v1 as vf

from capitals.atlas import CAPITALS, Atlas


class CapitalData(vf.TaskData):
    answer: str


class CapitalTask(vf.Task[CapitalData]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Atlas(vf.ToolsetConfig())]

    @vf.reward(weight=1.0)
    async def named(self, trace: vf.Trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))


class CapitalsTaskset(vf.Taskset[CapitalTask, vf.TasksetConfig]):
    def load(self) -> list[CapitalTask]:
        return [
            CapitalTask(
                CapitalData(
                    idx=n, prompt=f"What is the capital of {country}?", answer=CAPITALS[country]
                ),
                self.config.task,
            )
            for n, country in enumerate(sorted(CAPITALS) * 10)
        ]
