"""What the exercises that change the engine measure: run it before the change, and after it.

python phase-01-architecture/changes_01.py {batches,messages,stops}
"""

from __future__ import annotations

import sys

from anna import EVERYBODY, PROMPTS, greedy, new_engine, passes, serve, tokens

from mini_vllm import RequestOutputKind
from mini_vllm.engine.step_record import StepRecord


def batches() -> None:
    """Everybody at once in two slots: the passes of each one's first and last token."""
    steps = serve(EVERYBODY, max_num_seqs=2)
    print(f"{len(steps)} passes", passes(steps))


def messages() -> None:
    """Eight requests of 240 tokens that want 100 each: block ids that go to the worker."""
    engine, sent = new_engine(max_num_seqs=8, blocks=400), list[int]()

    def count(record: StepRecord) -> None:
        output = record.scheduler_output
        known = output.scheduled_cached_reqs.new_block_ids
        new = [request.block_ids for request in output.scheduled_new_reqs]
        sent.append(sum(len(ids) for tables in [*known, *new] for ids in tables or ()))

    engine.engine_core.step_observers.append(count)
    for number in range(8):
        engine.add_request(str(number), tokens(8 + number, 240), greedy(100))
    answer = []
    while engine.has_unfinished_requests():
        answer += [
            token
            for output in engine.step()
            if output.finished
            for token in output.outputs[0].token_ids
        ]
    print(
        f"{sum(sent):,} block ids in {len(sent)} messages; the answers' ids add up to {sum(answer):,}"
    )


def stops() -> None:
    """Anna's stream with a stop string, delta by delta."""
    engine = new_engine()
    params = greedy(64, stop=["keys and values"], output_kind=RequestOutputKind.DELTA)
    shown = [output.outputs[0].text for output in engine.stream(PROMPTS["anna"], params)]
    print(repr("".join(shown)), "in", len([text for text in shown if text]), "deltas")


if __name__ == "__main__":
    {"batches": batches, "messages": messages, "stops": stops}[sys.argv[1]]()
