"""The attempt tracker: templates forwarded to the keeper, and accepts that are not durable yet."""

import asyncio

from rota.agent.attempts import AttemptTracker
from rota.agent.plan import HostFacts
from rota.model.ids import JobId
from rota.model.messages import JobOrders, ReportedState, Start, task_template
from rota.model.result import ResultEndpoint
from rota.testing.builders import job_reports, job_spec

HOST = HostFacts(frozenset(), leaving=False)


def order(tracker: AttemptTracker, index: int, *, described: bool = False) -> JobOrders:
    """Order a start of a task of job 1; return what is forwarded to the keeper."""
    work = task_template(job_spec()) if described else None
    orders = [JobOrders(JobId("1"), work, [Start(index, 1, firm=True)], [])]
    tracker.remember_templates(orders)
    (forwarded,) = tracker.apply_orders(orders, HOST)
    return forwarded


def test_a_template_is_forwarded_to_the_keeper_once() -> None:
    tracker = AttemptTracker()
    first, second = order(tracker, 0, described=True), order(tracker, 1)

    assert first.work == task_template(job_spec())
    assert second.work is None


def test_a_template_is_forwarded_again_after_a_refusal() -> None:
    tracker = AttemptTracker()
    order(tracker, 0, described=True)
    tracker.record([job_reports(1, ReportedState.REFUSED, (0, 1), reason="cannot write the journal")])

    assert order(tracker, 1).work == task_template(job_spec())


def test_a_changed_result_endpoint_is_forwarded() -> None:
    tracker, job = AttemptTracker(), JobId("1")
    before, after = (
        task_template(job_spec(), ResultEndpoint("http://a", "key", "n1", others=others))
        for others in ((), ("http://b",))
    )
    forwarded_templates = []
    for index, work in enumerate((before, before, after, after)):
        orders = [JobOrders(job, work, [Start(index, 1, firm=True)], [])]
        tracker.remember_templates(orders)
        forwarded_templates += [order.work for order in tracker.apply_orders(orders, HOST)]

    assert forwarded_templates == [before, None, after, None]


async def test_all_accepts_are_durable_at_the_watermark() -> None:
    tracker = AttemptTracker()
    tracker.sent_in(1, tracker.inventory())
    order(tracker, 0, described=True)
    tracker.on_durable(1)
    order(tracker, 1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(tracker.all_accepts_durable())
        before = [await is_over(waiting)]
        tracker.record([job_reports(1, ReportedState.EXITED, (0, 1))])  # it ended before its accept was sent
        tracker.sent_in(2, tracker.drain_changes())
        before.append(await is_over(waiting))
        tracker.record([job_reports(1, ReportedState.RUNNING, (1, 1))])
        tracker.sent_in(3, tracker.drain_changes())
        tracker.on_durable(2)
        await waiting

    assert before == [False, False]


async def test_an_accept_is_in_the_next_hello_if_its_message_was_lost() -> None:
    tracker = AttemptTracker()
    order(tracker, 0, described=True)
    tracker.sent_in(7, tracker.drain_changes())
    tracker.sent_in(1, tracker.inventory())
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(tracker.all_accepts_durable())
        early = await is_over(waiting)
        tracker.on_durable(1)
        await waiting

    assert not early


async def is_over(waiting: asyncio.Task[None]) -> bool:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return waiting.done()
