"""The queue between collecting and training."""

from __future__ import annotations

import asyncio

from slime.data.sample_queue import SampleQueue, Taken
from slime.types import Sample, SampleGroup


def group(name: str, version: int = 0, num_samples: int = 1) -> SampleGroup:
    sample = Sample(
        token_ids=(1, 2),
        streams={"loss_mask": (0, 1), "policy_versions": (-1, version)},
        values={},
        turn_ids=(name,),
    )
    return SampleGroup(name, (sample,) * num_samples)


async def test_takes_just_enough_and_carries_the_rest_over():
    queue = SampleQueue(capacity=10, max_staleness=4)
    for name in "abcde":
        await queue.put(group(name))
    taken = await queue.take(3)
    assert [g.group_id for g in taken.groups] == ["a", "b", "c"]
    assert queue.turn_ids == ("d", "e")


async def test_put_waits_while_full_and_goes_on_when_there_is_room():
    queue = SampleQueue(capacity=2, max_staleness=4)
    await queue.put(group("a"))
    await queue.put(group("b"))
    late = asyncio.create_task(queue.put(group("c")))
    await asyncio.sleep(0.01)
    assert not late.done()
    await queue.take(1)
    await asyncio.wait_for(late, 1)
    assert queue.turn_ids == ("b", "c")


async def test_a_group_larger_than_the_queue_does_not_block_for_ever():
    queue = SampleQueue(capacity=2, max_staleness=0)
    await asyncio.wait_for(queue.put(group("big", num_samples=5)), 1)
    taken = await asyncio.wait_for(queue.take(5), 1)
    assert len(taken.groups[0].samples) == 5


async def test_what_is_too_old_is_handed_back_and_never_trained():
    queue = SampleQueue(capacity=10, max_staleness=2, staleness=lambda sample: 4 - min(sample.trained_versions))
    for name, version in [("old", 1), ("edge", 2), ("new", 4)]:
        await queue.put(group(name, version))
    taken = await queue.take(2)
    assert [g.group_id for g in taken.stale] == ["old"]
    assert [g.group_id for g in taken.groups] == ["edge", "new"]


async def test_stale_samples_are_reported_without_waiting_for_fresh_ones():
    queue = SampleQueue(capacity=10, max_staleness=0, staleness=lambda sample: 1)
    await queue.put(group("old", 0))
    taken = await asyncio.wait_for(queue.take(1), 1)
    assert taken.groups == ()
    assert [g.group_id for g in taken.stale] == ["old"]


async def test_what_is_put_back_comes_first_in_its_old_order():
    queue = SampleQueue(capacity=10, max_staleness=4)
    for name in "abc":
        await queue.put(group(name))
    taken = await queue.take(2)
    await queue.put_back(taken.groups)
    assert queue.turn_ids == ("a", "b", "c")


async def test_after_the_end_takes_what_is_left_and_then_nothing():
    queue = SampleQueue(capacity=10, max_staleness=4)
    for name in "abc":
        await queue.put(group(name))
    assert len((await queue.take(2)).groups) == 2
    waiting = asyncio.create_task(queue.take(2))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await queue.end()
    assert [g.group_id for g in (await asyncio.wait_for(waiting, 1)).groups] == ["c"]
    assert await asyncio.wait_for(queue.take(2), 1) == Taken((), ())
    assert len(queue) == 0
