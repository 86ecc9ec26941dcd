"""An environment of `verifiers` (0.4): a number to find in three turns, by what the answers say.

Nothing here is of this service. `verifiers_env.py` trains on it; `vf-eval` could evaluate it.
"""

import verifiers.v1 as vf

__all__ = ["GuessEnv", "GuessTaskset"]

NUMBERS, TURNS = 4, 3


class GuessData(vf.TaskData):
    """The number, which the model is not told."""

    secret: int = 0


class Guess(vf.Task[GuessData]):
    """One number; its rubric rewards finding it, the sooner the more, and writing numbers."""

    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        """Return 1 at the first turn, less at later ones."""
        wrote = [message.content for message in trace.assistant_messages]
        secret = str(self.data.secret)
        return 1 - wrote.index(secret) / (2 * TURNS) if secret in wrote else 0.0

    @vf.reward(weight=0.2)
    async def wrote_numbers(self, trace: vf.Trace) -> float:
        """Return the share of turns that are a number."""
        wrote = [message.content or "" for message in trace.assistant_messages]
        return sum(text.isdigit() for text in wrote) / len(wrote)


class GuessTaskset(vf.Taskset[Guess, vf.TasksetConfig]):
    """All numbers."""

    def load(self) -> list[Guess]:
        """Return a task for each."""
        return [Guess(GuessData(prompt="find it.", secret=secret)) for secret in range(NUMBERS)]


class GuessConfig(vf.EnvConfig):
    """Who plays."""

    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessConfig]):
    """Says `more` or `less` until the number is found."""

    async def run(self, task: Guess, agents: vf.Agents) -> None:
        """Play one episode."""
        async with agents.player.interaction(task) as play:
            segment = await play.turn()
            for _ in range(TURNS - 1):
                wrote = segment.last_reply
                if segment.terminated or wrote == str(task.data.secret):
                    break
                is_low = wrote.isdigit() and int(wrote) < task.data.secret
                segment = await play.turn("more" if is_low else "less")
