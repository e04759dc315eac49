"""Targets that decline more than they may: one that declines everything would differ from eager nowhere."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fuzz.campaign.ledger import Tally
from fuzz.execute.call import LACKS

# So improbable must be what is taken to be no chance.
_CHANCE = 1e-6


def excessive_refusals(tallies: Mapping[str, Tally], shares: Mapping[str, float]) -> dict[str, str]:
    """Of a campaign's targets those that decline more than they may, and in words how much that is. `shares`
    says what they may (`Target.refuses`); of others it may be everything."""
    found = {}
    for name, tally in tallies.items():
        share = shares.get(name, 1.0)
        refused = sum(n for reason, n in tally.refusals.items() if not reason.startswith(LACKS))
        if too_often(refused, tally.cases, share):
            part = f"{refused} of {tally.cases} cases, {refused / tally.cases:.2%}"
            found[name] = f"{name} refused {part}, where {share:.2%} is the most that it may"
    return found


def too_often(refused: int, cases: int, share: float) -> bool:
    """Whether so many refusals can be no chance where each case is refused with a probability of `share`.

    By Chernoff's bound at least a share q of n trials succeeds with a probability of at most
    exp(-n KL(q, share)) (W. Hoeffding, Probability inequalities for sums of bounded random variables, Journal
    of the American Statistical Association 58, 1963, theorem 1).

    >>> too_often(2, 100, share=0.01), too_often(20, 100, share=0.01)
    (False, True)
    """
    if not cases or refused <= share * cases:
        return False
    q, rest = refused / cases, 1 - refused / cases
    divergence = q * math.log(q / share) if share else math.inf
    if rest:
        divergence += rest * math.log(rest / (1 - share))
    return cases * divergence > -math.log(_CHANCE)
