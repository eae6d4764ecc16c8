"""What an event outbox says of its losses: at once, and then less and less often."""

from __future__ import annotations

from edge_sdk.publishing.durable.complaints import Complaints
from edge_sdk.publishing.durable.losses import Losses

_DAY_S = 86400


def test_a_week_of_losses_is_a_handful_of_lines_and_a_later_loss_is_said_at_once() -> None:
    now_s, lines = 0.0, list[str]()
    complaints = Complaints(lambda _, line: lines.append(line), lambda: now_s)
    for minute in range(7 * 24 * 60):
        now_s = minute * 60.0
        complaints.lost(Losses(overflow=1 + minute))
        if minute == 0:
            assert lines[0].startswith("1 event is lost")
    assert 10 < len(lines) < 25
    complaints.lost(Losses(overflow=10**6))
    now_s += 2 * _DAY_S
    count = len(lines)
    complaints.lost(Losses(overflow=10**6 + 1))
    assert len(lines) == count + 1
    now_s += 61
    complaints.lost(Losses(overflow=10**6 + 2))
    assert len(lines) == count + 2  # it begins again with a minute
