"""What an agent hands on to its keeper: each job's work with its first order, and again if it was refused."""

import asyncio

from rota.agent.attempts import AttemptTracker
from rota.agent.plan import HostFacts
from rota.model.ids import JobId
from rota.model.messages import JobOrders, ReportedState, Start, task_template
from rota.model.result import ResultEndpoint
from rota.testing.builders import claims, job_spec

WELL = HostFacts(frozenset(), leaving=False)


def order(desk: AttemptTracker, index: int, *, described: bool = False) -> JobOrders:
    """An order to start that task of job 1, as the keeper is told it."""
    work = task_template(job_spec()) if described else None
    orders = [JobOrders(JobId("1"), work, [Start(index, 1, firm=True)], [])]
    desk.remember_templates(orders)
    (handed_on,) = desk.apply_orders(orders, WELL)
    return handed_on


def test_a_template_is_forwarded_to_the_keeper_once() -> None:
    desk = AttemptTracker()
    first, second = order(desk, 0, described=True), order(desk, 1)

    assert first.work == task_template(job_spec())
    assert second.work is None


def test_a_template_is_forwarded_again_after_a_refusal() -> None:
    desk = AttemptTracker()
    order(desk, 0, described=True)
    desk.record([claims(1, ReportedState.REFUSED, (0, 1), reason="cannot write the journal")])

    assert order(desk, 1).work == task_template(job_spec())


def test_a_changed_result_endpoint_is_forwarded() -> None:
    desk, job = AttemptTracker(), JobId("1")
    before, after = (
        task_template(job_spec(), ResultEndpoint("http://a", "key", "n1", others=others))
        for others in ((), ("http://b",))
    )
    told = []
    for index, work in enumerate((before, before, after, after)):
        orders = [JobOrders(job, work, [Start(index, 1, firm=True)], [])]
        desk.remember_templates(orders)
        told += [one.work for one in desk.apply_orders(orders, WELL)]

    assert told == [before, None, after, None]


async def test_all_accepts_are_durable_at_the_watermark() -> None:
    desk = AttemptTracker()
    desk.sent_in(1, desk.inventory())
    order(desk, 0, described=True)
    desk.on_durable(1)
    order(desk, 1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(desk.all_accepts_durable())
        before = [await is_over(waiting)]
        desk.record([claims(1, ReportedState.EXITED, (0, 1))])  # it has ended before anything was said of it
        desk.sent_in(2, desk.drain_changes())
        before.append(await is_over(waiting))
        desk.record([claims(1, ReportedState.RUNNING, (1, 1))])
        desk.sent_in(3, desk.drain_changes())
        desk.on_durable(2)
        await waiting

    assert before == [False, False]


async def test_an_accept_is_in_the_next_hello_if_its_message_was_lost() -> None:
    desk = AttemptTracker()
    order(desk, 0, described=True)
    desk.sent_in(7, desk.drain_changes())
    desk.sent_in(1, desk.inventory())
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(desk.all_accepts_durable())
        early = await is_over(waiting)
        desk.on_durable(1)
        await waiting

    assert not early


async def is_over(waiting: asyncio.Task[None]) -> bool:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return waiting.done()
