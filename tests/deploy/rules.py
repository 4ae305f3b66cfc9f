"""Rule sets for tests: some made by hand, some drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from controlplane.planner.entries import Aggregate, Forward, LabelEntry, MulticastGroup, Replicate, Route, RuleSet

MAC = "02:00:0a:00:00:07"


def small(switch: str, first_label: int = 1) -> RuleSet:
    """Return a rule set with one rule of every kind."""
    everyone = Aggregate(0, 63, 1, 0xFFFF_FFFF_FFFF_FFFF, first_label + 7, first_label + 8, 2)
    return RuleSet(
        switch,
        labels=(
            LabelEntry(1, first_label, Forward(2)),
            LabelEntry(1, first_label + 1, everyone),
            LabelEntry(2, first_label + 2, Replicate(5)),
        ),
        groups=(MulticastGroup(5, (3, 1)),),
        routes=(Route("10.0.0.7", 32, MAC, 3), Route("10.1.0.0", 16, MAC, 1)),
    )


def large(switch: str, count: int) -> RuleSet:
    """Return a rule set with many labels."""
    return RuleSet(switch, tuple(LabelEntry(1, label, Forward(2)) for label in range(1, count + 1)), (), ())


ports = st.integers(1, 4)
groups = st.dictionaries(st.integers(1, 4), st.sets(ports, min_size=1), max_size=3)


@st.composite
def rule_sets(draw: st.DrawFn) -> RuleSet:
    """Draw rule sets in which every replicate has its group."""
    made = draw(groups)
    actions: list[st.SearchStrategy] = [st.builds(Forward, ports)]
    if made:
        actions.append(st.builds(Replicate, st.sampled_from(sorted(made))))
    actions.append(
        st.builds(Aggregate, st.just(0), st.just(7), st.integers(0, 3), st.just(3), *[st.integers(1, 9)] * 2, ports)
    )
    labels = draw(st.dictionaries(st.tuples(ports, st.integers(1, 6)), st.one_of(actions), max_size=6))
    routes = draw(st.dictionaries(st.integers(1, 4), ports, max_size=3))
    return RuleSet(
        "s1",
        tuple(LabelEntry(port, label, action) for (port, label), action in labels.items()),
        tuple(MulticastGroup(number, tuple(members)) for number, members in made.items()),
        tuple(Route(f"10.0.0.{host}", 32, MAC, port) for host, port in routes.items()),
    )
