"""/metrics as numbers: samples by name and labels."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Metrics:
    """One scrape."""

    samples: Samples

    @classmethod
    def parse(cls, text: str) -> Metrics:
        return cls(
            {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
        )

    def value(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name whose labels include `labels`; 0 if there is none."""
        wanted = set(labels.items())
        return sum(v for (n, have), v in self.samples.items() if n == name and wanted <= have)
