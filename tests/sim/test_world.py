"""Virtual time: ordered events, clocks that drift, processes that die, freeze and resume."""

from rota.sim.world.virtual_time import WALL_MS, SimClock, SimProcess, World


def started(world: World, name: str = "p") -> SimProcess:
    process = SimProcess(world, name, SimClock(world))
    process.start_life()
    return process


def test_events_run_in_order_of_time_and_then_of_scheduling() -> None:
    world = World(0)
    seen: list[tuple[int, str]] = []
    for name, at_ms in (("late", 20), ("first", 10), ("second", 10), ("now", 0), ("in the past", -5)):
        world.after(at_ms, lambda name=name: seen.append((world.now_ms, name)))  # type: ignore[misc]
    world.run(100)

    assert seen == [(0, "now"), (0, "in the past"), (10, "first"), (10, "second"), (20, "late")]
    assert (world.now_ms, world.steps) == (100, 5)


def test_an_event_scheduled_by_an_event_runs_in_the_same_run() -> None:
    world = World(0)
    seen: list[int] = []
    world.after(10, lambda: world.after(10, lambda: seen.append(world.now_ms)))
    world.run(20)

    assert seen == [20]


def test_a_run_stops_at_its_time_and_continues_from_there() -> None:
    world = World(0)
    seen: list[int] = []
    world.after(30, lambda: seen.append(world.now_ms))
    world.run(29)

    assert (seen, world.now_ms) == ([], 29)
    world.run(40)
    assert seen == [30]


def test_a_run_stops_when_it_is_done() -> None:
    world = World(0)
    seen: list[int] = []
    for at_ms in (1, 2, 3):
        world.after(at_ms, lambda: seen.append(world.now_ms))
    world.run(100, lambda: len(seen) == 2)

    assert (seen, world.now_ms) == ([1, 2], 2)


def test_equal_traces_have_the_same_digest() -> None:
    first, same, other = World(0), World(0, keep_trace=False), World(0)
    for world in (first, same):
        world.record("n1", "is healthy")
    other.record("n1", "is unhealthy")

    assert first.digest == same.digest != other.digest
    assert first.trace == ["     0.000  n1: is healthy"]
    assert same.trace == []


def test_each_name_has_its_own_generator() -> None:
    world = World(7)
    alone = [world.rng("store").random() for _ in range(3)]
    rng = world.rng("store")
    rng.random()
    world.rng("network").random()

    assert alone[0] == alone[1] == alone[2]
    assert rng.random() != alone[0] != world.rng("network").random()
    assert World(8).rng("store").random() != alone[0]


def test_a_fast_clock_is_ahead_and_stays_ahead() -> None:
    world = World(0)
    clock = SimClock(world)
    clock.run_at(1.05)
    world.run(10_000)
    ahead_ms = clock.boot_ms()
    needed_ms = clock.real_ms(1050)
    clock.run_at(1.0)
    world.run(20_000)

    assert ahead_ms == 10_500
    assert round(needed_ms) == 1000
    assert clock.boot_ms() == 20_500


def test_only_the_wall_clock_jumps() -> None:
    world = World(0)
    clock = SimClock(world)
    world.run(5_000)
    clock.jump(-3_600_000)

    assert clock.boot_ms() == 5_000
    assert clock.wall_ms() == WALL_MS + 5_000 - 3_600_000


def test_a_dead_process_runs_no_callbacks() -> None:
    world = World(0)
    process = started(world)
    seen: list[str] = []
    process.after(10, lambda: seen.append("of the first life"))
    process.end()
    process.start_life()
    process.after(20, lambda: seen.append("of the second life"))
    world.run(100)

    assert seen == ["of the second life"]


def test_callbacks_of_a_frozen_process_run_in_order_when_it_is_resumed() -> None:
    world = World(0)
    process = started(world)
    seen: list[tuple[int, str]] = []
    process.after(10, lambda: seen.append((world.now_ms, "first")))
    process.after(20, lambda: seen.append((world.now_ms, "second")))
    process.freeze()
    world.after(50, process.resume)
    world.run(100)

    assert seen == [(50, "first"), (50, "second")]
    assert process.runs


def test_a_killed_process_drops_its_backlog() -> None:
    world = World(0)
    process = started(world)
    seen: list[str] = []
    process.after(10, lambda: seen.append("waited"))
    process.freeze()
    world.run(20)
    process.end()
    process.start_life()
    process.resume()
    world.run(100)

    assert seen == []


def test_a_process_frozen_again_while_it_resumes_keeps_its_backlog() -> None:
    world = World(0)
    process = started(world)
    seen: list[str] = []
    process.freeze()
    process.do(process.life, process.freeze)
    process.do(process.life, lambda: seen.append("after the second resume"))
    process.resume()
    before = list(seen)
    process.resume()

    assert (before, seen) == ([], ["after the second resume"])


def test_a_process_waits_by_its_own_clock() -> None:
    world = World(0)
    process = started(world)
    process.clock.run_at(0.5)
    seen: list[int] = []
    process.after(100, lambda: seen.append(world.now_ms))
    world.run(1000)

    assert seen == [200]
