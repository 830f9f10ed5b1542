"""A world as a short script, and its run as a table of turns."""

from __future__ import annotations

from dataclasses import asdict

from course.fuzz.drive import Make, play
from course.fuzz.memory import Wrong
from course.fuzz.world import Job, Settings, World

WORDS = {
    "sync": "Scheduler, one batch at a time",
    "async": "AsyncScheduler, {} batches in flight, the device never done early",
    "early": "AsyncScheduler, the device always done when the engine looks",
    "mixed": "AsyncScheduler, the device done in some turns",
}


def script(world: World) -> str:
    """The settings that matter, and what happens before which turn."""
    plain = asdict(Settings(num_blocks=0))
    changed = {k: v for k, v in asdict(world.settings).items() if v != plain[k]}
    how = WORDS[world.mode].format(world.in_flight)
    lines = [f"{how}; {', '.join(f'{k}={v}' for k, v in changed.items())}"]
    if (spec := world.speculation) is not None:
        lines.append(
            f"{spec.method} drafts {spec.k} tokens, each right {spec.acceptance} times in 100"
            + (f"; fewer {spec.short} times in 100" if spec.short else "")
        )
    events: list[tuple[int, str]] = []
    for index, job in enumerate(world.jobs):
        ids = ", ".join(f"{child}_{index}" for child in range(job.n))
        events.append((job.arrive, f"add {ids}: {_job(job)}"))
        if job.abort is not None:
            when = " while the batch is computed" if job.late else ""
            events.append((job.abort, f"abort {ids}{when}"))
    for turn, running in world.resets:
        events.append((turn, f"reset_prefix_cache(reset_running_requests={running})"))
    lines += [f"turn {turn}: {text}" for turn, text in sorted(events, key=lambda e: e[0])]
    if world.probes:
        lines.append("then each one again, its answer in the prompt")
    return "\n".join(lines)


def _job(job: Job) -> str:
    plain = list(range(10, 10 + len(job.prompt)))
    first, last = job.prompt[0], job.prompt[-1]
    run = f"{first}" if first == last else f"{first} to {last}"
    prompt = f"tokens {run}" if list(job.prompt) == plain else f"prompt {list(job.prompt)}"
    words = [prompt, f"max_tokens={job.max_tokens}"]
    words += [f"priority={job.priority}"] * bool(job.priority)
    words += [f"cache_salt={job.salt}"] * bool(job.salt)
    words += ["ends at EOS"] * (not job.ignore_eos)
    words += [f"stop_token_ids={list(job.stop)}"] * bool(job.stop)
    return ", ".join(words)


def story(world: World, make: Make, turns: int = 40) -> str:
    """What each turn planned, whom it preempted, which tokens came in; and how it ended."""
    try:
        log, end = play(world, make, keep_log=True).log, "ends well"
    except Wrong as error:
        log, end = error.run.log, f"{type(error).__name__}: {error}"  # type: ignore[attr-defined]
    lines = []
    for number, turn in enumerate((log or [])[:turns]):
        planned = ", ".join(
            f"{request_id} {start}..{start + count - 1}"
            for request_id, (start, count) in turn.planned.items()
        )
        line = f"{number:4d}  {planned or '-'}"
        line += f"; preempts {', '.join(turn.preempted)}" if turn.preempted else ""
        came = {request_id: tokens for request_id, tokens in turn.taken_in.items() if tokens}
        line += f"; {', '.join(f'{r} gives {t}' for r, t in came.items())}" if came else ""
        lines.append(line)
    if log is not None and len(log) > turns:
        lines.append(f"      … {len(log) - turns} more turns")
    return "\n".join([*lines, end])
