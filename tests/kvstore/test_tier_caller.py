import pytest

from kvstitch.kvstore.tier_caller import BreakerSettings, CircuitBreaker


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def breaker(clock):
    return CircuitBreaker(BreakerSettings(failures=3, cooldown_s=5), clock)


def test_opens_after_failures_in_a_row(breaker):
    for _ in range(2):
        assert breaker.allow()
        breaker.failed()
    breaker.succeeded()
    for _ in range(3):
        assert breaker.state == "closed" and breaker.allow()
        breaker.failed()
    assert breaker.state == "open" and not breaker.allow()


def test_one_timeout_opens_it(breaker):
    breaker.failed(timeout=True)
    assert breaker.state == "open"


def test_one_probe_per_cooldown(breaker, clock):
    breaker.failed(timeout=True)
    clock.now = 4.9
    assert not breaker.allow()
    clock.now = 5.0
    assert breaker.state == "half-open"
    assert breaker.allow() and not breaker.allow()
    breaker.failed()
    assert breaker.state == "open"
    clock.now = 9.9
    assert not breaker.allow()
    clock.now = 10.0
    assert breaker.allow()
    breaker.succeeded()
    assert breaker.state == "closed" and breaker.allow() and breaker.allow()


def test_a_failed_probe_needs_no_second_failure(breaker, clock):
    for _ in range(3):
        breaker.failed()
    clock.now = 5
    assert breaker.allow()
    breaker.succeeded()
    breaker.failed()
    assert breaker.state == "closed", "success forgets earlier failures"
