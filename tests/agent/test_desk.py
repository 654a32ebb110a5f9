"""What an agent hands on to its keeper: each job's work with its first order, and again if it was refused."""

import asyncio

from rota.agent.desk import Desk
from rota.agent.plan import Facts
from rota.model.ids import JobId
from rota.model.result import ReportDoor
from rota.model.sync import JobOrders, Said, Start, work_of
from rota.testing.builders import claims, job_spec

WELL = Facts(frozenset(), leaving=False)


def order(desk: Desk, index: int, *, described: bool = False) -> JobOrders:
    """An order to start that task of job 1, as the keeper is told it."""
    work = work_of(job_spec()) if described else None
    orders = [JobOrders(JobId("1"), work, [Start(index, 1, firm=True)], [])]
    desk.learn(orders)
    (handed_on,) = desk.obey(orders, WELL)
    return handed_on


def test_a_keeper_is_told_a_jobs_work_once() -> None:
    desk = Desk()
    first, second = order(desk, 0, described=True), order(desk, 1)

    assert first.work == work_of(job_spec())
    assert second.work is None


def test_a_keeper_that_refused_is_told_the_work_again() -> None:
    desk = Desk()
    order(desk, 0, described=True)
    desk.note([claims(1, Said.REFUSED, (0, 1), reason="cannot write the journal")])

    assert order(desk, 1).work == work_of(job_spec())


def test_a_keeper_is_told_when_tasks_are_to_report_elsewhere() -> None:
    desk, job = Desk(), JobId("1")
    before, after = (
        work_of(job_spec(), ReportDoor("http://a", "key", "n1", others=others))
        for others in ((), ("http://b",))
    )
    told = []
    for index, work in enumerate((before, before, after, after)):
        orders = [JobOrders(job, work, [Start(index, 1, firm=True)], [])]
        desk.learn(orders)
        told += [one.work for one in desk.obey(orders, WELL)]

    assert told == [before, None, after, None]


async def test_a_desk_is_settled_when_all_that_was_taken_is_on_the_servers_disk() -> None:
    desk = Desk()
    desk.said(1, desk.inventory())
    order(desk, 0, described=True)
    desk.stored(1)
    order(desk, 1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(desk.settled())
        before = [await is_over(waiting)]
        desk.note([claims(1, Said.EXITED, (0, 1))])  # it has ended before anything was said of it
        desk.said(2, desk.take_changes())
        before.append(await is_over(waiting))
        desk.note([claims(1, Said.RUNNING, (1, 1))])
        desk.said(3, desk.take_changes())
        desk.stored(2)
        await waiting

    assert before == [False, False]


async def test_what_was_taken_is_told_by_the_next_hello_where_the_first_word_was_lost() -> None:
    desk = Desk()
    order(desk, 0, described=True)
    desk.said(7, desk.take_changes())
    desk.said(1, desk.inventory())
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(desk.settled())
        early = await is_over(waiting)
        desk.stored(1)
        await waiting

    assert not early


async def is_over(waiting: asyncio.Task[None]) -> bool:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return waiting.done()
