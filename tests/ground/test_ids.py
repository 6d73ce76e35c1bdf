"""Names of things."""

import uuid

import pytest

from think_celery.ids import (
    AgentRef,
    WorkflowRef,
    advance_task_id,
    named_id,
    new_id,
    short_hash,
    submission_id_for,
)

AGENT = AgentRef("TriageAgent", "issue-42")


def test_new_ids_are_unique_and_sort_by_time():
    """UUID version 7: rows made later have greater ids, so indexes grow at one end."""
    ids = [new_id() for _ in range(2000)]

    assert len(set(ids)) == 2000
    assert {uuid.UUID(each).version for each in ids} == {7}
    stamps = [uuid.UUID(each).int >> 80 for each in ids]
    assert stamps == sorted(stamps)


def test_the_same_parts_always_name_the_same_id():
    """Fixed once and for all: another value would orphan every stored row."""
    assert AGENT.id == str(
        uuid.uuid5(uuid.uuid5(uuid.NAMESPACE_URL, "urn:think-celery"), "agent\x1fTriageAgent\x1fissue-42")
    )
    assert submission_id_for(AGENT, "key") == submission_id_for(AgentRef("TriageAgent", "issue-42"), "key")


def test_different_parts_name_different_ids():
    """No two of these may meet."""
    workflow = WorkflowRef("Triage", "w")
    ids = [
        AGENT.id,
        AgentRef("TriageAgent", "issue-43").id,
        AgentRef("OtherAgent", "issue-42").id,
        workflow.key,
        submission_id_for(AGENT, "a"),
        submission_id_for(AGENT, "b"),
        advance_task_id(workflow.key, 1, 0),
        advance_task_id(workflow.key, 1, 1),
        advance_task_id(workflow.key, 2, 0),
        named_id("a", "bc"),
        named_id("ab", "c"),
    ]

    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("text", ["", "key", "☃" * 1000, "\ud83c", "\x00"])
def test_a_short_hash_takes_any_text(text):
    """22 characters, also for texts that no encoding takes."""
    assert len(short_hash(text)) == 22
    assert short_hash(text) == short_hash(text) != short_hash(text + "x")


def test_references_read_well():
    """They stand in logs and errors."""
    assert str(AGENT) == "TriageAgent('issue-42')"
    assert str(WorkflowRef("Triage", "w")) == "Triage('w')"
