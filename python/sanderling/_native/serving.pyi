"""Rows from servers of predictions (`sanderling serve`)."""

from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from sanderling._native.arguments import _Keys
from sanderling._sources import Tls

@final
class RowsClient:
    """Read rows of the tables of a served model.

    `replicas` are servers of the same model as "host:port"; `model` names one and may pin a version, "clicks@12".
    `token` and `tls` are those of the servers. `timeout_s` limits a read. All rows of an answer are of one version of
    the model.

    With `max_age_s` rows come from a cache if they were read at most this long ago; it takes `cache_bytes` per table
    and is emptied when the version changes. With `hedge`, "p95" or a time such as "500us", slower requests are
    repeated at another replica (at most 5 %).

    A client is for one thread.
    """

    def __new__(
        cls,
        replicas: Sequence[str],
        *,
        model: str = "",
        token: str | None = None,
        tls: Tls | None = None,
        timeout_s: float = 1.0,
        max_age_s: float = 0.0,
        cache_bytes: int = 67_108_864,
        hedge: str | None = None,
    ) -> RowsClient: ...
    def rows(
        self, table: str, keys: _Keys, *, user: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_], int]:
        """Return the weights [n, dim], whether each key has a row, and the version; zeros without a row.

        Reads with the same `user` go to the same replica while it answers, so that its cache has this user's rows.
        """

    def statistics(self) -> dict[str, int]:
        """Return counts since the start.

        Keys: hits, misses (keys), flips (changes of a version), requests, hedged, hedges_won.
        """
