"""What of the sources' ends is Kafka's, and what is said when a group takes no offsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaConnectionError, NoError, NotCoordinatorError, UnknownMemberIdError
from kafka.structs import OffsetAndMetadata

from exactsink.contract import Fatal, Retryable
from exactsink_kafka.group import report_offsets, source_offsets


class Admin:
    """Takes offsets, and answers as it is reported."""

    def __init__(self, answers: Mapping[TopicPartition, Any] | Exception) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Mapping[TopicPartition, OffsetAndMetadata]]] = []

    def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Any:
        self.asked.append((group, offsets))
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers


def test_sources_report_together_and_of_two_that_read_one_partition_the_one_that_lags() -> None:
    ahead, most = '{"orders": {"0": 17, "1": 4}}', 2**63 - 1
    behind = f'{{"orders": {{"0": 3, "2": 8}}, "clicks": {{"2147483647": {most}}}}}'
    for ends in ([ahead, behind], [behind, ahead]):
        assert source_offsets(ends) == {"orders": {0: 3, 1: 4, 2: 8}, "clicks": {2147483647: most}}


OTHERS = """
not json | 7 | [] | {"logOffset": 5} | {"stream": {"shardId-000": {"iteratorType": "AT"}}} | {"orders": {"0": null}}
{"sourceVersion": 1, "reservoirId": "a", "reservoirVersion": 3, "index": -1} | {"orders": {"0": 5}, "more": 1}
{"orders": {"0": "17"}} | {"orders": {"0": 1.5}} | {"orders": {"0": true}} | {"orders": {"0": -1}}
{"orders": {"-1": 5}} | {"orders": {"x": 5}} | {"orders": {"\u0663": 5}} | {"orders": {" 1": 5}}
{"orders": {"2147483648": 5}} | {"orders": {"0": 9223372036854775808}}
""".strip()


@pytest.mark.parametrize("end", ["", *OTHERS.replace("\n", " | ").split(" | ")])
def test_an_end_that_is_not_kafkas_is_passed_over_whole(end: str) -> None:
    assert source_offsets([end, '{"orders": {"1": 6}}', end]) == {"orders": {1: 6}}


@pytest.mark.parametrize("ends", [[], ["7"], ["{}"], ['{"orders": {}}', '{"logOffset": 5}']])
def test_without_a_kafka_source_nothing_is_sent_and_the_error_says_what_the_sources_read(ends: list[str]) -> None:
    admin = Admin({})
    with pytest.raises(Fatal, match="no source of this job reports its offsets") as failed:
        report_offsets(admin, "lag", ends)
    assert admin.asked == []
    assert failed.value.why == f"they read {'; '.join(ends) or 'nothing'}"
    assert "report_offsets_to" in failed.value.next


def test_of_two_causes_the_first_is_named_with_its_own_partitions_and_what_to_do() -> None:
    answers = [NoError, UnknownMemberIdError, NotCoordinatorError, *[UnknownMemberIdError] * 3]
    admin = Admin({TopicPartition("orders", number): answer for number, answer in enumerate(answers)})
    with pytest.raises(Retryable) as failed:
        report_offsets(admin, "lag", ['{"orders": {"0": 5}}'])
    assert admin.asked == [("lag", {TopicPartition("orders", 0): OffsetAndMetadata(5, "", None)})]
    said = "the broker answered UnknownMemberIdError for orders/1, orders/3, orders/4, ..."
    assert failed.value.what == f"commit the source's offsets to group lag: {said}"
    assert "the group has consumers" in failed.value.why
    assert "--members" in failed.value.next


@pytest.mark.parametrize("answers", [KafkaConnectionError("gone"), ConnectionResetError("gone")])
def test_a_broker_that_is_away_is_retried(answers: Exception) -> None:
    with pytest.raises(Retryable, match=r"commit the source's offsets to group lag: .*gone") as failed:
        report_offsets(Admin(answers), "lag", ['{"orders": {"0": 5}}'])
    assert failed.value.next == "the next epoch tries again"
