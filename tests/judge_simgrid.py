"""A play (judge_plays.py) on SimGrid's fluid network model: microseconds on standard output.

Run by Debian's own Python, whose package python3-simgrid has SimGrid's bindings; no import of ours.
"""

import json
import sys

import simgrid


def main() -> None:
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

    def act(lines: list) -> None:
        under_way = []
        for line in lines:
            word = line[0]
            if word == "take":
                counters[line[1]].acquire()
            elif word == "give":
                counters[line[1]].release()
            elif word == "send":
                simgrid.Comm.sendto_async(*ends[line[1]], round(line[2])).wait()
                if line[3] >= 0:
                    counters[line[3]].release()
            elif word == "start":
                under_way.append(simgrid.Comm.sendto_async(*ends[line[1]], round(line[2])))
            else:
                for comm in under_way:
                    comm.wait()
                under_way.clear()

    for number, lines in enumerate(play["actors"]):
        simgrid.Actor.create(f"actor{number}", ends[0][0], act, lines)
    engine.run()
    print(json.dumps({"time": simgrid.Engine.clock, "version": simgrid.simgrid_version}))


main()
