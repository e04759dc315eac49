"""Refusal rate: find targets that decline more programs than they may.

A target that declined everything would never differ from eager.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fuzz.campaign.ledger import Tally
from fuzz.execute.call import LACKS

# A rate counts as excessive if its probability is below this.
_CHANCE = 1e-6


def excessive_refusals(tallies: Mapping[str, Tally], shares: Mapping[str, float]) -> dict[str, str]:
    """The targets of a campaign that decline more than they may, each with a sentence that says how much.

    `shares` has the share that each may decline (`Target.refuses`); a target without an entry may decline
    everything.
    """
    found = {}
    for name, tally in tallies.items():
        share = shares.get(name, 1.0)
        refused = sum(n for reason, n in tally.refusals.items() if not reason.startswith(LACKS))
        if too_often(refused, tally.cases, share):
            part = f"{refused} of {tally.cases} cases, {refused / tally.cases:.2%}"
            found[name] = f"{name} refused {part}, where {share:.2%} is the most that it may"
    return found


def too_often(refused: int, cases: int, share: float) -> bool:
    """Whether so many refusals are more than chance if each case is refused with a probability of `share`.

    By Chernoff's bound at least a share q of n trials succeeds with a probability of at most exp(-n KL(q,
    share)) (W. Hoeffding, Probability inequalities for sums of bounded random variables, Journal of the
    American Statistical Association 58, 1963, theorem 1).

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
