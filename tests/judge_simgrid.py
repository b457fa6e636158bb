"""A play (judge_plays.py) on SimGrid's fluid network model: microseconds on standard output.

Run by Debian's own Python, whose package python3-simgrid has SimGrid's bindings; no import of ours.
"""

import json
import os
import sys

import simgrid


def main() -> None:
    # Actors are threads that hand on to each other: between processors that takes four times as
    # long.
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[os.getpid() % len(processors)]})
    play = json.load(sys.stdin)
    # a microsecond is a second here, so that SimGrid's precision of 1 ns is far below what counts
    engine = simgrid.Engine(["judge", "--log=root.thres:error", "--cfg=network/model:CM02"])
    zone = simgrid.NetZone.create_full_zone("all")
    links = [
        zone.create_link(f"link{i}", rate).set_latency(0).seal()
        for i, (rate, _) in enumerate(play["links"])
    ]
    ends = []
    for number, route in enumerate(play["routes"]):
        pair = [zone.create_host(f"{side}{number}", 1e9).seal() for side in ("from", "to")]
        on = [simgrid.LinkInRoute(links[link]) for link in route]
        zone.add_route(pair[0].netpoint, pair[1].netpoint, None, None, on, False)
        ends.append(pair)
    zone.seal()
    counters = [simgrid.Semaphore(value) for value in play["counters"]]

    def give(counter: int, after: float) -> None:
        def later() -> None:
            simgrid.this_actor.sleep_for(after)
            counters[counter].release()

        if after:
            simgrid.Actor.create("later", ends[0][0], later)
        else:
            counters[counter].release()

    def move(route: int, size: float, after: float, tail: float, over: simgrid.Semaphore) -> None:
        simgrid.this_actor.sleep_for(after)
        simgrid.Comm.sendto_async(*ends[route], round(size)).wait()
        simgrid.this_actor.sleep_for(tail)
        over.release()

    last = [0.0]  # when an actor came to its end, or data arrived

    def act(lines: list) -> None:
        started, over = 0, simgrid.Semaphore(0)
        for line in lines:
            word = line[0]
            if word == "take":
                counters[line[1]].acquire()
            elif word == "give":
                give(line[1], line[2])
            elif word == "send":
                simgrid.Comm.sendto_async(*ends[line[1]], round(line[2])).wait()
                last.append(simgrid.Engine.clock + play["delays"][line[1]])
                if line[3] >= 0:
                    give(line[3], play["delays"][line[1]])
            elif word == "start":
                simgrid.Actor.create("move", ends[0][0], move, *line[1:], over)
                started += 1
            else:
                for _ in range(started):
                    over.acquire()
                started = 0
        last.append(simgrid.Engine.clock)

    for number, lines in enumerate(play["actors"]):
        simgrid.Actor.create(f"actor{number}", ends[0][0], act, lines)
    engine.run()
    print(json.dumps({"time": max(last), "version": simgrid.simgrid_version}))


main()
