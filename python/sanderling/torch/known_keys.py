"""Coverage of the keys in scored rows: for how many of them a model has rows."""

from collections.abc import Mapping

import sanderling


class KnownKeyCounts:
    """Number of keys by feature, and of those that have a row, over batches."""

    def __init__(self, tables: Mapping[str, sanderling.Table]) -> None:
        """Take the table of each feature."""
        self._tables = tables
        self.counts = dict.fromkeys(tables, (0, 0))
        """Keys so far, and those with a row, by feature."""

    def add(self, batch: sanderling.Batch) -> None:
        """Count the keys of a batch."""
        for name, (occurrences, known) in self.counts.items():
            keys = batch.keys(name)
            self.counts[name] = occurrences + len(keys), known + self._tables[name].count_known(keys)

    def remarks(self) -> list[str]:
        """Return a remark on each feature of which no key has a row."""
        return [
            f'0 of {occurrences:,} ids of "{name}" are known to the model (an unknown key has its initial row): are'
            " they written as in training?"
            for name, (occurrences, known) in self.counts.items()
            if occurrences > 0 and known == 0
        ]
