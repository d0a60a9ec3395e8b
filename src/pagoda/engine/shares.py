"""`Shares`: how much each tenant was served, so that whoever was served least comes first.

Knows names and token counts. Start-time fair queueing (Goyal et al. 1996) on the tokens computed, as the "virtual token
counter" of Sheng et al. 2024, "Fairness in Serving Large Language Models": a tenant that comes back starts close to
where the others are, so that nobody saves up a claim by staying away.
"""

from __future__ import annotations

from collections import Counter

QUANTUM = 256
"""Tokens: smaller differences between tenants do not matter, so that prompts are not cut up in turns."""
CREDIT = 8 * QUANTUM
"""Tokens by which a tenant that was away starts before the others: so its prompt is not shared out with theirs."""
RECENT = 20_000
"""Tokens computed since another tenant had its turn, after which the machine is one tenant's alone."""
OUTPUT_WEIGHT = 2
"""What an output token counts, in prompt tokens (Sheng et al., section 4.1)."""


class Shares:
    """Served tokens by tenant, of those who have requests under way."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._open: Counter[str] = Counter()
        self._floor = 0
        self._last, self._changed = "", -RECENT

    def opened(self, tenant: str) -> None:
        """A tenant has one sequence more under way."""
        if not self._open[tenant]:
            self._served[tenant] = max(self._served.get(tenant, 0), self._floor - CREDIT)
        self._open[tenant] += 1

    def closed(self, tenant: str) -> None:
        """One of its sequences has ended."""
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]
            if self._served[tenant] <= self._floor - CREDIT:
                del self._served[tenant]
        if not self._open:
            self._served.clear()
            self._changed -= self._floor
            self._floor = 0

    def charge(self, tenant: str, tokens: int) -> None:
        """So many tokens of it were computed."""
        self._served[tenant] += tokens

    def level(self, tenant: str) -> int:
        """How much it was served, in whole quanta: the lowest comes first."""
        return self._served[tenant] // QUANTUM

    def serve(self, tenant: str) -> None:
        """A prompt of this tenant comes next: who opens from here on starts there."""
        self._floor = max(self._floor, self._served[tenant])
        if tenant != self._last:
            self._last, self._changed = tenant, self._floor

    @property
    def contended(self) -> bool:
        """Whether several tenants have requests under way, or had their turns lately."""
        return len(self._open) > 1 or self._floor - self._changed < RECENT

    @property
    def tenants(self) -> int:
        """How many have requests under way."""
        return len(self._open)

    def check(self) -> None:
        """Assert that who has requests under way has a counter."""
        assert all(count > 0 for count in self._open.values()), self._open
        assert set(self._open) <= set(self._served), "a tenant is not counted"
